"""How iteration scales with threads: `python -m bench.threads [threads]`, on a free-threaded Python (3.14t).

Each thread reads records of its own with the Python API, so threads share types, functions and constants only. A loop
over numbers shows what the machine and the interpreter allow: other programs, and a lower clock of busy cores, take a
share of each.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import kafkafmt as kf
from bench.table import aligned

_ROUNDS = 7
_TIMES = 20  # that a thread repeats its work in a round, so that a round takes a second
_RECORDS, _RECORDS_PER_BATCH = 200_000, 100
_LEAST = 1.9


def stored(codec: str) -> bytes:
    """Return batches of records of about 100 bytes."""
    batches = []
    for first in range(0, _RECORDS, _RECORDS_PER_BATCH):
        builder = kf.RecordBatchBuilder(codec=codec, base_offset=first)
        for offset in range(first, first + _RECORDS_PER_BATCH):
            builder.append(1_700_000_000_000 + offset, b"key-%d" % offset, b"value %090d" % offset)
        batches.append(builder.build())
    return b"".join(batches)


def by_batch(data: bytes) -> None:
    """Read each value, batch by batch."""
    for batch in kf.MemoryRecords(data).batches():
        for record in batch:
            record.value  # noqa: B018


def by_record(data: bytes) -> None:
    """Read offset, key and value of each record."""
    for record in kf.MemoryRecords(data).records():
        record.offset, record.key, record.value  # noqa: B018


def numbers(_: bytes) -> None:
    """Count without any object that threads share."""
    total = 0
    for number in range(5 * _RECORDS):
        total += number & 255


def seconds(work: Callable[[bytes], None], copies: list[bytes]) -> float:
    """Return how long threads take for their work, one for each copy of the data."""
    begin = threading.Barrier(len(copies) + 1)

    def run(data: bytes) -> None:
        begin.wait()
        for _ in range(_TIMES):
            work(data)

    with ThreadPoolExecutor(len(copies)) as threads:
        works = [threads.submit(run, data) for data in copies]
        begin.wait()
        started = time.perf_counter()
        for done in works:
            done.result()
        return time.perf_counter() - started


def main() -> None:
    """Print how much more work all threads do than one, in the best of some rounds of each in turn."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 2
    if getattr(sys, "_is_gil_enabled", lambda: True)():
        print("This Python has a GIL: threads take turns, so all ratios are about 1.")
    rows = [["", "records/s of 1 thread", f"of {count} threads", "ratio", "target"]]
    works = [
        ("numbers (the machine)", numbers, stored("none")),
        ("for record in batch", by_batch, stored("none")),
        ("for record in batch, lz4", by_batch, stored("lz4")),
        ("for record in records", by_record, stored("none")),
    ]
    for name, work, data in works:
        copies = [bytes(bytearray(data)) for _ in range(count)]
        one = many = float("inf")
        for _ in range(_ROUNDS):
            one = min(one, seconds(work, copies[:1]))
            many = min(many, seconds(work, copies))
        rates = (_TIMES * _RECORDS / one, _TIMES * count * _RECORDS / many)
        least = "" if work is numbers else f">= {_LEAST * count / 2:g}"
        rows.append([name, *(f"{rate:,.0f}" for rate in rates), f"{rates[1] / rates[0]:.2f}", least])
    print(aligned(rows))
    print(f"{os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
