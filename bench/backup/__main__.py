"""`make bench-backup`: a backup of a real broker into a folder, beside the raw mirror of the same topic into a folder.

Every contender is a process of its own, which starts, stores a whole topic and ends; they take turns. The start and
the end, of a topic without records, are subtracted. The target is 0.8 of the mirror's rate, for a backup as it is.
"""

from __future__ import annotations

import argparse
import secrets
import shutil
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from tests.broker.broker import Broker

from bench import BUILD
from bench.broker import broker_of
from bench.compare import show_progress
from bench.mirror.measure import Measured, run
from bench.mirror.works import Work
from bench.results import Table, add_arguments, figure, notes_of_load, report
from bench.segments import MIB, Segment
from bench.serve.logs import topic_of
from kafkafmt import Codec

ROOT = BUILD / "backup"
EMPTY = "bench-empty"
ROUNDS = 3
SIZE = 128  # of a partition
PARTITIONS = 8
TARGET = 0.8
MIRROR, BACKUP = "mirror", "backup"
CONTENDERS = (MIRROR, BACKUP, "encrypted", "compressed", "both")
KAFKAFMT = str(Path(sys.executable).with_name("kafkafmt"))
_USUAL_LOAD = 3.0


def works(size: int) -> list[Work]:
    """Topics of records of 100 bytes and of 1 KiB, in batches of 16 KiB without compression."""
    return [Work(Segment(Codec.NONE, value, 16 * 1024, size=size), PARTITIONS) for value in (100, 1024)]


def command_of(contender: str, broker: Broker, topic: str, target: Path, keys: Path) -> list[str]:
    source = f"kafka://{broker.bootstrap}/{topic}"
    if contender == MIRROR:
        return [KAFKAFMT, "mirror", source, str(target), "--once", "--use-raw-bytes", "--progress", "0"]
    command = [KAFKAFMT, "backup", source, target.as_uri(), "--progress", "0"]
    if contender in ("encrypted", "both"):
        command += ["--key-ring", str(keys), "--key-id", "bench"]
    if contender in ("compressed", "both"):
        command += ["--compress"]
    return command


def measured(broker: Broker, topic: str, rounds: int, keys: Path) -> Mapping[str, Measured]:
    """The contenders in turns, each into an empty folder."""
    found = {name: Measured() for name in CONTENDERS}
    target = ROOT / "target"
    for _ in range(rounds):
        for name, runs in found.items():
            show_progress(f"{topic}: {name}")
            shutil.rmtree(target, ignore_errors=True)
            runs.runs.append(run(command_of(name, broker, topic, target, keys), ROOT / f"{name}.log"))
    shutil.rmtree(target, ignore_errors=True)
    return found


def table_of(work: Work, runs: Mapping[str, Measured], starts: Mapping[str, Measured]) -> Table:
    def rate(name: str) -> float:
        return work.wire_gigabytes * 1e3 / (runs[name].seconds - starts[name].seconds)

    lines: list[list[str]] = [["", "MB/s", "of the mirror", "CPU s/GB", "MiB", "verdict"]]
    for name in CONTENDERS:
        ratio = rate(name) / rate(MIRROR)
        beyond = runs[name].processor_seconds - starts[name].processor_seconds
        lines.append(
            [
                name,
                figure(rate(name), ",.0f", "MB/s"),
                figure(ratio, ".2f", "", "x"),
                figure(beyond / work.wire_gigabytes, ".2f", "s/GB"),
                figure(runs[name].peak_mib, ",.0f", "MiB"),
                ("hit" if ratio >= TARGET else "MISSED") if name == BACKUP else "",
            ]
        )
    title = f"Records of {work.segment.value_size} bytes, {work.wire_gigabytes:.2f} GB"
    return Table(f"backup-{work.segment.value_size}", title, lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.backup", description=__doc__)
    add_arguments(parser)
    parser.add_argument("--size", type=int, default=SIZE, metavar="MIB", help="of a partition")
    parser.add_argument("--rounds", type=int, default=ROUNDS, metavar="N", help="of which the best counts")
    arguments = parser.parse_args()
    started = time.monotonic()
    ROOT.mkdir(parents=True, exist_ok=True)
    keys = ROOT / "keys.ini"
    keys.write_text("[bench]\nfile = bench.key\n")
    (ROOT / "bench.key").write_text(secrets.token_hex(32))
    chosen = [
        work for work in works(arguments.size * MIB) if arguments.k in f"{work.segment.value_size} bytes"
    ]
    folders = {
        work.topic: [*topic_of(work.segment, 1, ROOT / "logs").folders] * work.partitions for work in chosen
    }
    found = {}
    with broker_of(folders, ROOT) as broker:
        broker.create_topic(EMPTY, PARTITIONS)
        starts = measured(broker, EMPTY, arguments.rounds, keys)
        for work in chosen:
            found[work] = measured(broker, work.topic, arguments.rounds, keys)
    show_progress("")
    report(
        "backup",
        [table_of(work, runs, starts) for work, runs in found.items()],
        command="make bench-backup",
        path=arguments.json,
        is_whole=not arguments.k,
        measured={
            work.topic: {name: asdict(one) for name, one in runs.items()} for work, runs in found.items()
        },
    )
    print(f"{time.monotonic() - started:.0f} seconds; what the rows mean: bench/README.md")
    print(*notes_of_load(_USUAL_LOAD), sep="\n")


if __name__ == "__main__":
    main()
