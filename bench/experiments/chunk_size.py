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
from bench.results import Figure, Table, report
from bench.segments import MIB, Segment, repeated, stored
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
    rates = {chunk: [size / 1e6 / second for second in taken] for chunk, taken in seconds.items()}
    found = table("KIP-283: throughput by chunk size, converted to a reader on loopback", rates)
    report("chunk_size", [found], command="python -m bench.experiments.chunk_size")


def table(title: str, rates: dict[int, list[float]]) -> Table:
    """Rates in MB/s by chunk size in KiB, beside the KIP's."""
    headings = ("chunk", "median MB/s", "best MB/s", "of 128 KiB", "KIP-283 MB/s", "KIP-283, of 128 KiB")
    rows: list[tuple[str, ...]] = [headings]
    reference = statistics.median(rates[128])
    for chunk, measured in rates.items():
        middle, theirs = statistics.median(measured), KIP_283[chunk]
        rate = Figure(middle, f"{middle:.0f}", "MB/s")
        numbers = (rate, f"{max(measured):.0f}", Figure(middle / reference, f"{middle / reference:.2f}", "x"))
        label = "no chunks" if chunk == ALL_AT_ONCE else f"{chunk} KiB"
        compared = theirs / KIP_283[128]
        rows.append(
            (
                label,
                *numbers,
                Figure(theirs, f"{theirs:.2f}", "MB/s"),
                Figure(compared, f"{compared:.2f}", "x"),
            )
        )
    series = {
        "kafkafmt": [
            (chunk, statistics.median(rates[chunk]) / reference) for chunk in rates if chunk != ALL_AT_ONCE
        ],
        "KIP-283": [
            (chunk, theirs / KIP_283[128]) for chunk, theirs in KIP_283.items() if chunk != ALL_AT_ONCE
        ],
    }
    return Table("chunk_size", title, rows, series=series)


if __name__ == "__main__":
    main()
