"""Hostile requests to `kafkafmt serve`: for how long one holds the event loop, and what a crowd of them makes it hold.

How long is the processor time of one iteration of the loop, of its thread alone. How much is the peak of a process's
resident memory above its start, with --memory. Exits with status 1 beyond a bound.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.endpoints.raw_client import RawClient, frame
from tests.endpoints.requests import Wanted, fetch, list_offsets, metadata
from tests.log.samples import batches, put_segment
from tests.process_memory import MIB
from tests.serve.test_hostile_memory import FOREVER_MS, KIB, crowded, fetch_of_topics, serving

import kafkafmt as kf
from bench import BUILD
from bench.results import Figure, Table, report
from kafkafmt.log import PartitionLogWriter
from kafkafmt.serve.endpoint import Endpoint
from kafkafmt.serve.options import ServeOptions
from kafkafmt.server.listener import listen
from kafkafmt.server.structured_logging import configure_logs
from kafkafmt.server.yielding import freeze_start

MOST_HELD_SECONDS = 0.05
SECONDS = 60.0
MEMORY_MIB, CROWD = 128, 100


class MeasuredLoop(asyncio.SelectorEventLoop):
    """Tells the longest processor time of one iteration."""

    longest = 0.0

    def _run_once(self) -> None:
        began = time.thread_time()
        super()._run_once()  # type: ignore[misc]
        self.longest = max(self.longest, time.thread_time() - began)


def longest_hold(directory: Path, request: bytes) -> float:
    """The longest that a request, and nothing else, holds the loop of an endpoint."""
    loop = MeasuredLoop()
    with listen("127.0.0.1", 0) as listener:
        endpoint = Endpoint(ServeOptions(directory), listener)
        thread = threading.Thread(target=loop.run_until_complete, args=[endpoint.serve()])
        thread.start()
        try:
            with RawClient(listener.getsockname()) as client:
                client.ask(metadata([]), 9)  # what is done once
                freeze_start()  # as the command does
                loop.longest = 0.0
                client.socket.settimeout(SECONDS)
                try:
                    client.socket.sendall(request)
                    client.receive_frame()
                except ConnectionError:
                    pass  # it is refused
                return loop.longest
        finally:
            loop.call_soon_threadsafe(endpoint.drain)
            thread.join()


def put_bombs(directory: Path) -> None:
    with PartitionLogWriter(directory / "bomb-0") as writer:
        for offset in range(0, 300, 100):
            builder = kf.RecordBatchBuilder(codec=kf.Codec.ZSTD, base_offset=offset, batch_size=256 * MIB)
            for _ in range(100):
                builder.append(1_700_000_000_000 + offset, None, bytes(MIB))
            writer.append(builder.build())


def put_large(directory: Path) -> None:
    """A segment of 512 MiB without an index."""
    put_segment(directory / "large-0", 0, batches(0, 32 * KIB, size=16 * KIB))


def requests() -> Iterator[tuple[str, Callable[[int], bytes], int]]:
    """Its name, how it is made, and how many a crowd sends; 0: none does."""
    yield (
        "Fetch v12 of 333,000 empty topics",
        lambda wait_ms: fetch_of_topics(MIB - 200, max_wait_ms=wait_ms),
        CROWD,
    )
    yield (
        "Fetch v12 of 21,000 empty topics",
        lambda wait_ms: fetch_of_topics(64 * KIB, max_wait_ms=wait_ms),
        CROWD,
    )
    unknown = [Wanted(f"{number:05}") for number in range(20_000)]
    yield "Fetch v12 of 20,000 unknown topics", lambda _: frame(fetch(*unknown), 12, 1), 0
    yield (
        "Fetch v12 of a segment that was not read",
        lambda _: frame(fetch(Wanted("large", 0, 30_000)), 12, 1),
        0,
    )
    every = fetch(Wanted("large", 0, 0, 1024 * MIB), max_bytes=1024 * MIB)
    yield "Fetch v12 of all of it", lambda _: frame(every, 12, 1), 0
    yield "Fetch v3 of a bomb", lambda _: frame(fetch(Wanted("bomb")), 3, 1), 0
    yield (
        "ListOffsets of a bomb",
        lambda _: frame(list_offsets(("bomb", 0, 1_700_000_000_050)), 5, 1),
        CROWD,
    )
    yield "Metadata of 80,000 partitions", lambda _: frame(metadata(), 9, 1), CROWD
    yield "a Fetch v12 of garbage", lambda _: frame(fetch(), 12, 1)[:20] + bytes(MIB // 2), 0


def main() -> int:
    configure_logs("json", "error")
    BUILD.mkdir(parents=True, exist_ok=True)
    rows: list[tuple[str, ...]] = [
        ("request", "bytes", "loop held", f"{CROWD} of them, --memory {MEMORY_MIB}m")
    ]
    is_bounded = True
    with tempfile.TemporaryDirectory(dir=BUILD) as folder:
        directory = Path(folder)
        put_bombs(directory)
        put_large(directory)
        for number in range(8):
            put_segment(directory / f"wide{number}-9999", 0, batches(0, 1))
        put_segment(directory / "small-0", 0, batches(0, 1))
        for name, make, crowd in requests():
            request, taken = make(FOREVER_MS), ""
            held = longest_hold(directory, make(0))
            is_bounded &= held <= MOST_HELD_SECONDS
            if crowd:
                with (
                    serving(directory, f"{MEMORY_MIB}m", "--log-level", "error") as endpoint,
                    crowded(endpoint, [request] * crowd) as sent,
                ):
                    taken = Figure(sent.taken_mib, f"{sent.taken_mib:.0f} MiB", "MiB")
                    is_bounded &= sent.taken_mib < MEMORY_MIB
            rows.append(
                (name, f"{len(request):,}", Figure(held * 1000, f"{held * 1000:.1f} ms", "ms"), taken)
            )
    title = "Hostile requests: the longest hold of the event loop, and what a crowd of them takes"
    report(
        "serve_hostile",
        [Table("serve_hostile", title, rows)],
        command="python -m bench.experiments.serve_hostile",
    )
    return int(not is_bounded)


if __name__ == "__main__":
    sys.exit(main())
