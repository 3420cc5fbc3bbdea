#!/usr/bin/env bash
# Install the project, and what it is developed with, into .venv, unless these very sources are installed there.
# The build runs inside .venv, not isolated from it, so that only the kernels that changed are compiled again.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly venv=.venv
readonly stamp=$venv/installed-from

# Prints a line that changes with the name or the content of any file that the install depends on.
fingerprint() {
    find pyproject.toml CMakeLists.txt tools/install.sh src python -type f ! -name '*.pyc' -exec cksum {} + |
        LC_ALL=C sort | cksum
}

pip() {
    "$venv/bin/python" -m pip --disable-pip-version-check -q "$@"
}

# Prints the requirements of the build: those of pyproject.toml, then what the backend finds missing (CMake, Ninja).
build_requires() {
    sed -n '/^\[build-system\]/,/^$/ s/^requires = \[\(.*\)\]/\1/p' pyproject.toml | tr -d '" ' | tr ',' '\n'
}
backend_requires() {
    "$venv/bin/python" -c \
        'from scikit_build_core.build import get_requires_for_build_wheel as wanted; print(*wanted(), sep="\n")'
}

if ! pip --version >/dev/null 2>&1; then
    rm -rf "$venv"
    python=$(tools/python.sh)
    echo "Making $venv with $("$python" --version)."
    "$python" -m venv "$venv"
    pip install --upgrade pip
fi
now=$(fingerprint)
if [ "$(cat "$stamp" 2>/dev/null)" = "$now" ]; then
    exit 0
fi
echo "Building kafkafmt and installing it into $venv (minutes the first time: PySpark is large)."
rm -rf "$stamp" "$venv/wheel"
pip install -r <(build_requires)
pip install -r <(backend_requires)
pip wheel --no-deps --no-build-isolation --wheel-dir "$venv/wheel" .
pip install --no-deps --force-reinstall "$venv"/wheel/*.whl
pip install "$(echo "$venv"/wheel/*.whl)[dev]"
echo "$now" >"$stamp"
