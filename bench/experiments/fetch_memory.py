"""KIP-283, "Efficiency of Chunking Approach": eager conversion must run out of memory, lazy must not.

As there: 1,000,000 messages of 1 kB in 250 partitions, and a fetch of 250 MB, 1 MB a partition, by a process that may
take 200 MB; here the limit is RLIMIT_AS, on what it takes beyond its start. Each way runs in a process of its
own. Exits with status 1 where one does not do what it must.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tests.process_memory import limit_virtual_bytes, peak_mib, resident_mib

from bench import BUILD, ROOT
from bench.experiments.drain import draining
from bench.results import Figure, Table, report
from bench.segments import Segment, repeated, stored
from kafkafmt import FileRecords, LazyDownConvertRecords, MemoryRecords

PARTITIONS = 250
MESSAGES_A_PARTITION = 4000
RECORD_BYTES = 1020  # with its part of the batch header
FETCH_BYTES_A_PARTITION = 1000 * 1000
LIMIT_BYTES = 200 * 1000 * 1000
OUT_OF_MEMORY = "out of memory"
LOOK_SECONDS = 0.005


def _opened(folder: str) -> list[FileRecords]:
    paths = sorted(Path(folder).iterdir())
    return [FileRecords(path, 0, FETCH_BYTES_A_PARTITION) for path in paths]


def eager(folder: str) -> tuple[int, int]:
    """Partitions converted and bytes sent: all of the response is made before any of it is sent."""
    response: list[MemoryRecords] = []
    try:
        response.extend(records.down_convert(1).records for records in _opened(folder))
    except MemoryError:
        return len(response), 0
    sent = 0
    with draining() as connection:
        for converted in response:
            connection.sendall(converted.buffer)
            sent += converted.size_in_bytes
    return len(response), sent


def lazy(folder: str) -> tuple[int, int]:
    """The same response; each chunk is made when the one before it is sent."""
    response = [LazyDownConvertRecords(records, 1) for records in _opened(folder)]
    done = sent = 0
    with draining() as connection:
        for records in response:
            send = records.to_send()
            while not send.completed:
                sent += send.write_to(connection)
            if send.error is not None:
                raise send.error
            done += 1
    return done, sent


def limited(way: Callable[[str], tuple[int, int]], folder: str) -> None:
    """In a process of its own: print the start in MiB; then partitions, bytes sent, and the peak above the start."""
    start = peak_mib()
    print(start, flush=True)
    limit_virtual_bytes(LIMIT_BYTES)
    converted, sent = way(folder)
    print(converted, sent, peak_mib() - start)


@dataclass(frozen=True)
class Measured:
    """What a way did, and what was resident above the start, in MiB by seconds."""

    converted: int
    sent: int
    peak_mib: float
    resident: list[tuple[float, float]]


def measure(way: str, folder: Path) -> Measured:
    command = [sys.executable, "-m", "bench.experiments.fetch_memory", way, str(folder)]
    resident: list[tuple[float, float]] = []
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        start, began = float(process.stdout.readline()), time.monotonic()
        while process.poll() is None:
            with suppress(StopIteration):  # it has just ended
                resident.append((time.monotonic() - began, resident_mib(process.pid) - start))
            time.sleep(LOOK_SECONDS)
        converted, sent, peak = process.stdout.read().split()
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return Measured(int(converted), int(sent), float(peak), resident)


def main() -> int:
    source = stored(Segment(value_size=1000, size=MESSAGES_A_PARTITION * RECORD_BYTES))
    BUILD.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=BUILD) as folder:
        for number in range(PARTITIONS):
            repeated(source, 1, Path(folder) / f"{number:03}.log")
        results = {way: measure(way, Path(folder)) for way in WAYS}
    headings = ("conversion", "partitions converted", "bytes sent", "peak above start", "outcome")
    rows: list[tuple[str, ...]] = [headings]
    for way, found in results.items():
        outcome = "completes" if found.sent else OUT_OF_MEMORY
        peak = Figure(found.peak_mib, f"{found.peak_mib:.1f} MiB", "MiB")
        rows.append((way, f"{found.converted} of {PARTITIONS}", str(found.sent), peak, outcome))
    title = f"{PARTITIONS} partitions of {source.records} messages of 1 kB; one fetch of 1 MB of each, limit 200 MB"
    series = {way: results[way].resident for way in ("lazy", "eager")}
    command = "python -m bench.experiments.fetch_memory"
    report("fetch_memory", [Table("fetch_memory", title, rows, series=series)], command=command)
    eager_found, lazy_found = results["eager"], results["lazy"]
    return int(bool(eager_found.sent) or lazy_found.converted != PARTITIONS or not lazy_found.sent)


WAYS = {"eager": eager, "lazy": lazy}

if __name__ == "__main__":
    if len(sys.argv) > 1:
        limited(WAYS[sys.argv[1]], sys.argv[2])
    else:
        sys.exit(main())
