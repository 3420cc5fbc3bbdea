#!/usr/bin/env bash
# Run tests that need no JVM under AddressSanitizer and UBSan: `sanitized.sh [arguments of pytest]`.
# `sanitized.sh --available` exits with 0 if this system supports it: Linux, and gcc with its libasan, which is preloaded.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly site=$PWD/build/sanitize/site
library=$(cc -print-file-name=libasan.so)

# Older libasans fail at random with address space randomization, so it is switched off if that is permitted.
run=()
if setarch "$(uname -m)" -R true 2>/dev/null; then
    run=(setarch "$(uname -m)" -R)
fi

# PYTHONMALLOC gives every object its own allocation, so that the sanitizer sees its bounds. Python leaks on purpose.
sanitized() {
    LD_PRELOAD=$library ASAN_OPTIONS=detect_leaks=0:quarantine_size_mb=64 PYTHONMALLOC=malloc PYTHONPATH=$site \
        "${run[@]}" .venv/bin/python "$@"
}

if [ "$(uname)" != Linux ] || [ ! -e "$library" ] || ! sanitized -c pass 2>/dev/null; then
    echo "The sanitized run is skipped: it needs Linux, and gcc with its libasan." >&2
    exit 1
fi
if [ "${1-}" = --available ]; then
    exit 0
fi
tools/instrument.sh KAFKAFMT_SANITIZE build/sanitize
# The native checks of tests/fuzz, with the options that CMakeLists.txt has for the kernels.
export KAFKAFMT_NATIVE_CHECKS=$PWD/build/sanitize/native_checks
CFLAGS="-g -O1 -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer" \
    PYTHONPATH=tests .venv/bin/python -m fuzz.native_checks "$KAFKAFMT_NATIVE_CHECKS"
sanitized -m pytest -n auto -m "not broker and not oracle and not spark" "$@"
