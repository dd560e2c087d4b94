#!/bin/sh
# Installs what a build and its tests need on Debian 12. Does nothing when all of it is there.
set -eu
packages="gcc g++ clang cmake ninja-build pkg-config libc6-dev
libcjson-dev libcmocka-dev libseccomp-dev libuv1-dev libxxhash-dev libdnnl-dev zlib1g-dev
libpcre2-dev libutf8proc-dev node-d3-scale node-d3-shape
libomp-dev clang-format libclang-rt-14-dev python3 python3-pip python3-pytest git patch gnuplot-nox"
missing=""
for p in $packages; do
    dpkg-query -W -f '${Status}' "$p" 2>/dev/null | grep -q 'install ok installed' || missing="$missing $p"
done
[ -z "$missing" ] && exit 0
if [ "$(id -u)" -eq 0 ]; then sudo=""; else sudo="sudo"; fi
echo "installing:$missing"
$sudo apt-get update -qq
# shellcheck disable=SC2086
DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y -qq --no-install-recommends $missing
