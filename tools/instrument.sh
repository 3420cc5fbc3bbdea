#!/usr/bin/env bash
# Build the kernels with one of the options of CMakeLists.txt beside the normal ones: `instrument.sh OPTION FOLDER`.
# FOLDER/site then holds the whole package: put it first on PYTHONPATH to run .venv with it.
# Nothing is done if FOLDER/site was built from these very sources, with this compiler, for this Python.
set -euo pipefail
cd "$(dirname "$0")/.."
option=$1
folder=$2

pip() {
    .venv/bin/python -m pip --disable-pip-version-check -q "$@"
}

# Prints a line that changes with the name or the content of any file that the build depends on, with the compiler, and
# with the Python.
fingerprint() {
    {
        find pyproject.toml CMakeLists.txt tools/instrument.sh src python -type f ! -name '*.pyc' -exec cksum {} +
        "${CC:-cc}" --version
        .venv/bin/python -VV
    } | LC_ALL=C sort | cksum
}

now=$(fingerprint)
if [ "$(cat "$folder/built-from" 2>/dev/null)" = "$now" ]; then
    exit 0
fi
rm -rf "$folder/built-from" "$folder/site" "$folder/wheel"
pip wheel --no-deps --no-build-isolation --wheel-dir "$folder/wheel" -C build-dir="$folder/objects/{wheel_tag}" \
    -C cmake.build-type=Debug -C cmake.define."$option"=ON -C wheel.exclude= .
pip install --no-deps --target "$folder/site" "$folder"/wheel/*.whl
echo "$now" >"$folder/built-from"
