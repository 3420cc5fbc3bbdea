"""KIP-283, "Effect on consumer throughput": which chunk size sends fastest?

As there: a topic of 12 partitions, messages of 1 kB, one consumer that reads all of it again and again; here
from files in the page cache to another process over TCP on loopback. The chunk sizes take turns, so that noise
meets all of them alike.
"""

from __future__ import annotations

import select
import socket
import statistics
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from bench import BUILD
from bench.experiments.drain import draining
from bench.segments import MIB, Segment, repeated, stored
from bench.table import aligned
from kafkafmt import FileRecords, LazyDownConvertRecords, Records

KIB = 1024
# Chunk size in KiB: KIP-283's average in MB/s.
KIP_283 = {16: 136.95, 32: 167.04, 64: 181.92, 128: 197.72, 256: 181.25, 512: 180.41, 1024: 176.64}
PARTITIONS = 12
PARTITION_BYTES = 64 * MIB
ALL_AT_ONCE = 2 * PARTITION_BYTES // KIB
KIP_283[ALL_AT_ONCE] = 178.9
ROUNDS = 10


def consume(partitions: list[Records], chunk_size: int) -> float:
    """Send all partitions, one after the other, and return the seconds until the reader has all of it."""
    with draining() as connection:
        connection.setblocking(False)
        writable = select.poll()
        writable.register(connection, select.POLLOUT)
        started = time.perf_counter()
        for records in partitions:
            send = LazyDownConvertRecords(records, 1, chunk_size=chunk_size).to_send()
            while not send.completed:
                if not send.write_to(connection):
                    writable.poll()
            if send.error is not None:
                raise send.error
        connection.shutdown(socket.SHUT_WR)
        connection.setblocking(True)
        connection.recv(1)  # the reader closes its end when it has read the last byte
        return time.perf_counter() - started


def main() -> None:
    source = stored(Segment(value_size=1000, size=PARTITION_BYTES))
    BUILD.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=BUILD) as folder, ExitStack() as opened:
        partitions: list[Records] = []
        for number in range(PARTITIONS):
            path = Path(folder) / f"{number}.log"
            repeated(source, 1, path)
            partitions.append(opened.enter_context(FileRecords(path)))
        size = sum(records.size_in_bytes for records in partitions)
        seconds: dict[int, list[float]] = {chunk: [] for chunk in KIP_283}
        for _ in range(ROUNDS):
            for chunk, measured in seconds.items():
                measured.append(consume(partitions, chunk * KIB))
    print(
        f"{PARTITIONS} partitions of {source.records} messages of 1 kB, v2 to v1, {ROUNDS} rounds of {size} bytes"
    )
    print(table({chunk: [size / 1e6 / second for second in taken] for chunk, taken in seconds.items()}))


def table(rates: dict[int, list[float]]) -> str:
    """Rates in MB/s by chunk size in KiB, beside the KIP's."""
    rows = [("chunk", "median MB/s", "best MB/s", "of that of 128 KiB", "KIP-283 MB/s", "of that of 128 KiB")]
    reference = statistics.median(rates[128])
    for chunk, measured in rates.items():
        middle, theirs = statistics.median(measured), KIP_283[chunk]
        numbers = (f"{middle:.0f}", f"{max(measured):.0f}", f"{middle / reference:.2f}")
        label = "no chunks" if chunk == ALL_AT_ONCE else f"{chunk} KiB"
        rows.append((label, *numbers, f"{theirs:.2f}", f"{theirs / KIP_283[128]:.2f}"))
    return aligned(rows)


if __name__ == "__main__":
    main()
