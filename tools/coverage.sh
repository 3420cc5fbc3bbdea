#!/usr/bin/env bash
# Run tests that need no JVM, and report the coverage of Python's branches and of the kernels' lines.
# `coverage.sh [arguments of pytest]`. The kernels are counted by gcc, whose counters also work without the GIL.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly build=$PWD/build/coverage
export COVERAGE_FILE=$build/data/coverage PYTHONPATH=$build/site

tools/instrument.sh KAFKAFMT_COVERAGE build/coverage
rm -rf "$build/data"
mkdir "$build/data"
find "$build/objects" -name '*.gcda' -delete

status=0
.venv/bin/coverage run -m pytest "$@" || status=$?
.venv/bin/coverage combine --quiet
.venv/bin/coverage report
.venv/bin/gcovr --root src --filter 'src/_kafkafmt/' --exclude '.*\.[ch]$' --object-directory "$build/objects" \
    --gcov-ignore-parse-errors=negative_hits.warn_once_per_file --txt "$build/objects"
exit "$status"
