"""What a lazy conversion of a file allocates at its peak: `python -m bench.peers.peak PATH` prints it as JSON.

Counted by tracemalloc, to which numpy reports too: resident memory is too coarse for a chunk.
What a codec's library allocates for itself is not seen here, but in experiments/lazy_memory.py.
"""

from __future__ import annotations

import json
import sys
import tracemalloc

from kafkafmt import FileRecords, LazyDownConvertRecords


def main(path: str) -> None:
    with FileRecords(path) as records:
        largest = int(records.index()["size"].max())
        for _ in LazyDownConvertRecords(records, 1).chunks(
            reuse_memory=True
        ):  # modules and codec contexts are loaded by now
            break
        tracemalloc.start()
        lazy = LazyDownConvertRecords(records, 1)
        for _ in lazy.chunks(reuse_memory=True):
            pass
        _, peak = tracemalloc.get_traced_memory()
    print(json.dumps({"peak": peak, "largest_batch": largest, "chunk_size": lazy.chunk_size}))


if __name__ == "__main__":
    main(sys.argv[1])
