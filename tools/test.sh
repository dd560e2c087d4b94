#!/bin/sh
# Everything that must hold before a change lands. `tools/test.sh quick` stops after the first ctest.
# The last thing printed is ctest's summary of the release build.
set -eu
cd "$(dirname "$0")/.."
mode=${1:-full}
step() { printf '\n== %s\n' "$*"; }

tools/install_packages.sh

step "formatting and layers"
git ls-files '*.c' '*.h' '*.cu' '*.cuh' '*.cpp' | xargs clang-format-14 --dry-run --Werror
tools/check_layers.sh
tools/check_invariants.sh

step "programs that tests compare with, from PyPI"
if [ ! -d build/peers ] && ! python3 -m pip install -q --root-user-action=ignore \
    --target build/peers -r tests/peers.txt; then
    rm -rf build/peers
    echo "PyPI cannot be reached: the test exports will say Skipped"
fi

step "release build (gcc), warnings are errors"
cmake --preset release -DGR_WERROR=ON >/dev/null
cmake --build --preset release --target all benches
if [ "$mode" = quick ]; then exec ctest --preset release; fi

step "address and undefined-behaviour sanitizers"
cmake --preset asan >/dev/null
cmake --build --preset asan
ctest --preset asan

step "thread sanitizer over engine and rollout"
cmake --preset tsan >/dev/null
cmake --build --preset tsan --target test_engine test_rollout
ctest --preset tsan -R '^(engine|rollout)$'

step "clang build, warnings are errors, and its fuzz targets, briefly"
cmake --preset fuzz >/dev/null
cmake --build --preset fuzz
for source in tests/fuzz_*.c; do
    t=$(basename "$source" .c)
    found=$(mktemp -d) # new inputs go here, the corpus stays as it is
    "build/fuzz/$t" -runs=20000 -max_len=4096 -close_fd_mask=3 "$found" "tests/corpus/$t"
    rm -r "$found"
done

step "tests of the release build"
exec ctest --preset release
