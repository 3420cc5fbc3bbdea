"""`make bench-tiered`: a topic in tiered storage read on Spark, beside the same bytes as plain segments.

Both are on the local disk. Plain segments are read as local files, which is the fastest way that there is. The Java
writer of the tests stores the tiered ones, in chunks of 4 MiB as the plugin does. Rates are those of the best run, in
bytes of the original log. Requests are the ranges that one process reads from the store for all batches.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench import BUILD
from bench import ROOT as PROJECT
from bench.compare import show_progress
from bench.results import Figure, Table, add_arguments, notes_of_load, report
from bench.spark.logs import MIB, Topic
from bench.spark.measure import WORKS, Contender, Measured, local_spark, take_turns
from bench.spark.sources import rows_of_tasks

sys.path.insert(0, str(PROJECT / "tests"))

from file_systems import CountingHandler, far
from kafkafmt.log import LogDirectory
from kafkafmt.storage import RemotePath, RemoteStorage
from kafkafmt.storage.keys import KeyRing
from kafkafmt.storage.tiered import TieredFileSystem
from storage.tiered_writer import KEY_ID, Transform, key_pair, segments_of, write

PLAIN, TARGET = "plain", 0.7
CHUNK_BYTES = 4 * MIB
CORES, ROUNDS = 2, 3
PARTITION_BYTES, SEGMENT_BYTES = 256 * MIB, 64 * MIB
TRANSFORMS = {
    "none": Transform(chunk_size=CHUNK_BYTES),
    "zstd": Transform(compressed=True, chunk_size=CHUNK_BYTES),
    "AES": Transform(encrypted=True, chunk_size=CHUNK_BYTES),
    "zstd and AES": Transform(compressed=True, encrypted=True, chunk_size=CHUNK_BYTES),
}
ROOT = BUILD / "tiered"


@dataclass(frozen=True)
class Row:
    """What a work took with each transform, and with the plain segments."""

    work: str
    megabytes: float
    runs: dict[str, Measured]

    def rate(self, name: str) -> float:
        return self.megabytes / self.runs[name].seconds


def stored(folders: list[Path]) -> Path:
    """Return the folder with the store of each transform and the key ring, made if it is absent."""
    root = ROOT / folders[0].name
    if not root.exists():
        partial = root.with_name(f"writing-{root.name}")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        key = key_pair(partial)
        (partial / "keys.ini").write_text(f"[{KEY_ID}]\nfile = {key.name}\n")
        for name, transform in TRANSFORMS.items():
            show_progress(f"writing {name}")
            segments = [one for folder in folders for one in segments_of(folder, transform, key)]
            write(partial / transform.name, segments)
        partial.rename(root)
    return root


@contextmanager
def plain_logs(folders: list[Path]) -> Iterator[Path]:
    """Yield a log directory with these folders alone."""
    logs = ROOT / "plain"
    shutil.rmtree(logs, ignore_errors=True)
    logs.mkdir(parents=True)
    for folder in folders:
        (logs / folder.name).symlink_to(folder)
    yield logs


def requests_of(name: str, root: Path, logs: Path) -> int:
    """Return the number of ranges that are read from the store for all records."""
    handler = CountingHandler()
    if name == PLAIN:
        path = far(handler, logs)
    else:
        base = far(handler, root / TRANSFORMS[name].name)
        view = TieredFileSystem(base, KeyRing.read(root / "keys.ini"))
        path = RemotePath(RemoteStorage(view, "tiered+counted://!"), "")
    for log in LogDirectory(path).logs():
        for segment in log.segments():
            with segment.open() as records:
                sum(1 for _ in records.batches())
    return len(handler.reads)


def measured(spark: Any, root: Path, logs: Path, megabytes: float, rows: int, wanted: str) -> Iterator[Row]:
    def frame(name: str) -> Any:
        reader = spark.read.format("kafkafmt")
        if name == PLAIN:
            return lambda: reader.load(str(logs))
        uri = f"tiered+{(root / TRANSFORMS[name].name).as_uri()}"
        return lambda: reader.option("key_ring", str(root / "keys.ini")).load(uri)

    contenders = {name: Contender(frame(name), rows, ROUNDS) for name in (PLAIN, *TRANSFORMS)}
    for work in ("count()", "sum(length(value))"):
        if wanted in work:
            show_progress(work)
            runs = take_turns(WORKS[work], contenders)
            if len({run.result for run in runs.values()}) != 1:
                raise AssertionError(f"{work}: {[run.result for run in runs.values()]}")
            yield Row(work, megabytes, runs)


def table(rows: list[Row], requests: dict[str, int]) -> Table:
    lines: list[tuple[str, ...]] = [
        ("work", "transform", "MB/s", "of plain", "requests", "target", "verdict")
    ]
    for row in rows:
        for name in row.runs:
            ratio = row.rate(name) / row.rate(PLAIN)
            is_hit = name == PLAIN or ratio >= TARGET
            lines.append(
                (
                    row.work,
                    name,
                    Figure(row.rate(name), f"{row.rate(name):.0f}", "MB/s"),
                    Figure(ratio, f"{ratio:.2f}x", "x"),
                    Figure(requests[name], str(requests[name]), "requests"),
                    "" if name == PLAIN else f">= {TARGET}x",
                    "hit" if is_hit else "MISSED",
                )
            )
    return Table(
        "tiered", "A tiered topic on Spark, beside the same bytes as plain segments", lines, left=(0, 1, 5, 6)
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.tiered", description=__doc__)
    parser.add_argument("--partitions", type=int, default=4, help="of 256 MiB each")
    add_arguments(parser)
    arguments = parser.parse_args()
    topic = Topic(1024, PARTITION_BYTES, SEGMENT_BYTES)
    folders = topic.stored(arguments.partitions)
    root = stored(folders)
    megabytes = sum(file.stat().st_size for folder in folders for file in folder.glob("*.log")) / 1e6
    with plain_logs(folders) as logs:
        requests = {name: requests_of(name, root, logs) for name in (PLAIN, *TRANSFORMS)}
        with local_spark(CORES) as spark:
            rows = list(
                measured(
                    spark, root, logs, megabytes, sum(rows_of_tasks(list(map(str, folders)))), arguments.k
                )
            )
    show_progress("")
    report(
        "tiered",
        [table(rows, requests)],
        command="make bench-tiered",
        path=arguments.json,
        is_whole=not arguments.k,
        measured={"rows": [asdict(row) for row in rows], "requests": requests},
    )
    print(*notes_of_load(CORES + 1.5), sep="\n")


if __name__ == "__main__":
    main()
