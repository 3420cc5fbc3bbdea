#!/usr/bin/env bash
# Run tests of shared objects under ThreadSanitizer: `tsan.sh [arguments of pytest]`.
# TSAN_PYTHON names a CPython that was configured with --disable-gil --with-thread-sanitizer; without the sanitizer in the
# interpreter, its locks are invisible, and each guarded access would be reported.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly tests=(tests/threads tests/records/test_shared_by_threads.py)
readonly python=${TSAN_PYTHON:-python3.14t} folder=build/tsan
if ! "$python" -c 'import sys, sysconfig
arguments = sysconfig.get_config_var("CONFIG_ARGS") or ""
sys.exit("--disable-gil" not in arguments or "--with-thread-sanitizer" not in arguments)' 2>/dev/null; then
    echo "The run is skipped: TSAN_PYTHON must name a CPython with --disable-gil and --with-thread-sanitizer." >&2
    exit 1
fi
if [ ! -x "$folder/venv/bin/python" ]; then
    "$python" -m venv "$folder/venv"
fi
# Cython of .venv, because the instrumented Python takes an hour to translate the kernels.
tools/free_threaded.sh "$folder/venv" -C cmake.define.KAFKAFMT_TSAN=ON -C cmake.build-type=Debug \
    -C "cmake.define.CYTHON_EXECUTABLE=$PWD/.venv/bin/cython"
PYTHON_GIL=0 TSAN_OPTIONS="suppressions=$PWD/tools/tsan_suppressions.txt halt_on_error=1 exitcode=66" \
    "$folder/venv/bin/python" -m pytest -m "not broker and not oracle and not spark" "${@:-${tests[@]}}"
