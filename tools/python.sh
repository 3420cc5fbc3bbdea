#!/usr/bin/env bash
# Print the Python from which .venv is made: $PYTHON if it is set, otherwise the first on the PATH of 3.10 or later.
set -euo pipefail

pythons=(python3 python3.14 python3.13 python3.12 python3.11 python3.10)
if [ -n "${PYTHON:-}" ]; then
    pythons=("$PYTHON")
fi
for python in "${pythons[@]}"; do
    if path=$(command -v "$python") && "$path" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
        echo "$path"
        exit 0
    fi
done
if [ -n "${PYTHON:-}" ]; then
    echo "PYTHON=$PYTHON: expected a Python of 3.10 or later." >&2
fi
exit 1
