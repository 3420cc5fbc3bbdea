#!/usr/bin/env bash
# Run tests on a free-threaded Python, then most of them in 4 threads at once: `parallel.sh [arguments of pytest]`.
# PYTHON names the Python; by default python3.14t of the PATH.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly venv=build/threads/venv
readonly tests=(tests/kernels tests/records tests/columns tests/build tests/convert tests/streams tests/memory tests/codecs)
if [ ! -x "$venv/bin/python" ]; then
    "${PYTHON:-python3.14t}" -m venv "$venv"
fi
tools/free_threaded.sh "$venv"
# lz4 and zstandard, with which the tests compare, would enable the GIL. The kernels do not: free_threaded.sh checks it.
export PYTHON_GIL=0
"$venv/bin/python" -m pytest -q -m "not broker and not clients and not oracle and not spark and not slow and not full and not exhaustive" \
    tests/threads "${@:-${tests[@]}}"
# All threads share what these fixtures count or replace, what these functions measure, and the standard output that a
# command writes to. The pages of the documentation name fixed paths.
"$venv/bin/python" -m pytest -q --parallel-threads 4 --hypothesis-profile=few --ignore-glob='*/test_docs.py' \
    -o thread_unsafe_fixtures=$'caplog\nmonkeypatch\nwritten\nfiles\nhandler' \
    -o thread_unsafe_functions=$'tracemalloc.*\nmeasure.*\ncli.logs.run' \
    -m "not broker and not clients and not oracle and not spark and not slow and not full and not exhaustive" "${@:-${tests[@]}}"
