#!/usr/bin/env bash
# Print the Python to make .venv with: $PYTHON where that is set, else the first of 3.10 or later that the PATH has.
set -euo pipefail

for python in ${PYTHON:-python3 python3.14 python3.13 python3.12 python3.11 python3.10}; do
    if path=$(command -v "$python") && "$path" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
        echo "$path"
        exit 0
    fi
done
exit 1
