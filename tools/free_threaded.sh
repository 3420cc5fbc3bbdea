#!/usr/bin/env bash
# Install the project, and what its tests without a JVM need, into a virtual environment of a free-threaded Python:
# `free_threaded.sh VENV [options of pip wheel]`. Nothing is compiled that did not change.
set -euo pipefail
cd "$(dirname "$0")/.."
readonly venv=$1
shift

pip() {
    "$venv/bin/python" -m pip --disable-pip-version-check -q "$@"
}

# Prints the requirements of the build, of pyproject.toml.
build_requires() {
    "$venv/bin/python" -c 'import tomllib
print(*tomllib.load(open("pyproject.toml", "rb"))["build-system"]["requires"], sep="\n")'
}

"$venv/bin/python" -c 'import sysconfig, sys; sys.exit(not sysconfig.get_config_var("Py_GIL_DISABLED"))' || {
    echo "$venv: expected a free-threaded Python, found $("$venv/bin/python" --version)." >&2
    exit 1
}
pip install -r <(build_requires) cmake ninja \
    'pytest>=8.4,<9.2' pytest-timeout pytest-run-parallel hypothesis \
    crc32c lz4 zstandard  # the oracles of the tests; pip compiles the last two
rm -rf "$venv/wheel"
pip wheel --no-deps --no-build-isolation --wheel-dir "$venv/wheel" "$@" .
pip install --no-deps --force-reinstall "$venv"/wheel/*.whl
pip install "$(echo "$venv"/wheel/*.whl)[backup,json]"  # the extras whose packages need no compiler
"$venv/bin/python" tools/check_no_gil.py
