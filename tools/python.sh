#!/usr/bin/env bash
# Print the Python from which .venv is made: $PYTHON if it is set, otherwise the first on the PATH of 3.10 or later.
set -euo pipefail

for python in ${PYTHON:-python3 python3.14 python3.13 python3.12 python3.11 python3.10}; do
    if path=$(command -v "$python") && "$path" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
        echo "$path"
        exit 0
    fi
done
exit 1
