#!/bin/sh
# From a fresh clone to a trained model: packages, build, the main job. Further arguments go to `grove train`.
set -eu
cd "$(dirname "$0")/.."
tools/install_packages.sh
cmake --preset release
cmake --build --preset release
exec build/release/grove train configs/frozenlake_patr.json "$@"
