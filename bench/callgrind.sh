#!/usr/bin/env bash
# Count the instructions of a work of bench/peers/ours.py: `callgrind.sh WORK [SEGMENT]`.
# Prints instructions per record, and the functions that take most of them. The count is that of 36 runs minus that of 4,
# so that the start of Python does not count. SEGMENT is a call of bench.segments.Segment; by default 1 MiB of 100-byte
# values. Valgrind has no AVX-512, so the kernels use other instructions.
set -euo pipefail
cd "$(dirname "$0")/.."
readonly work=$1 segment=${2:-Segment(size=MIB)}
readonly python=${PYTHON:-.venv/bin/python} out=build/bench/callgrind
mkdir -p "$out"

run() {  # RUNS
    PYTHONHASHSEED=0 OPENBLAS_NUM_THREADS=1 valgrind --tool=callgrind --callgrind-out-file="$out/$1" "$python" -c "
from bench.peers.ours import works
from bench.segments import MIB, ONE_RECORD, Segment, stored
from kafkafmt import Codec
segment = stored($segment)
run = dict(works())['$work'](segment.path.read_bytes())
for _ in range($1): run()
print(segment.records, segment.batches)" 2>"$out/log" || { cat "$out/log" >&2; return 1; }
}

instructions() {  # RUNS
    sed -n 's/^\(summary\|totals\): \([0-9]*\).*/\2/p' "$out/$1" | head -n 1
}

run 1 >/dev/null  # makes the segment, and the caches of Python's modules
read -r records batches < <(run 4)
run 36 >/dev/null
cost=$((($(instructions 36) - $(instructions 4)) / 32))
echo "$work, $segment: $((cost / records)) instructions a record, $((cost / batches)) a batch ($records records in $batches)"
callgrind_annotate "$out/36" | awk '/file:function/ { left = 16 } left-- > 0'
