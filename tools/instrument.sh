#!/usr/bin/env bash
# Build the kernels with one of the options of CMakeLists.txt beside the normal ones: `instrument.sh OPTION FOLDER`.
# FOLDER/site then holds the whole package: put it first on PYTHONPATH to run .venv with it.
set -euo pipefail
cd "$(dirname "$0")/.."
option=$1
folder=$2

pip() {
    .venv/bin/python -m pip --disable-pip-version-check -q "$@"
}

rm -rf "$folder/site" "$folder/wheel"
pip wheel --no-deps --no-build-isolation --wheel-dir "$folder/wheel" -C build-dir="$folder/objects" \
    -C cmake.build-type=Debug -C cmake.define."$option"=ON -C wheel.exclude= .
pip install --no-deps --target "$folder/site" "$folder"/wheel/*.whl
