"""`make bench-mirror`: what mirroring a GB takes, raw and deep, beside a loop of confluent-kafka's clients.

From a real broker of Kafka 3.9.1 to one of Kafka 4 on this machine, every contender a process of its own, which starts,
mirrors a whole topic and ends. Seconds of the processors are the least of the runs, of the mirroring process alone.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import kafkafmt
from bench.compare import machine, notes_of_load, show_progress
from bench.mirror import requests
from bench.mirror.clusters import clusters
from bench.mirror.contenders import COMMANDS, DEEP, LIBRDKAFKA, RAW
from bench.mirror.copying import Copying, Row
from bench.mirror.works import all_works
from bench.segments import MIB
from bench.table import aligned

ROUNDS = 2
SIZE = 32
# The brokers' threads and the mirror's: less is others' work.
_USUAL_LOAD = 4.0


def processors_text(rows: Sequence[Row]) -> str:
    lines = [
        (
            "processors' seconds",
            "MB",
            "of wire",
            *COMMANDS,
            "raw a GB of wire",
            "raw/deep",
            "raw/confluent",
            "",
        )
    ]
    for row in rows:
        work = row.work
        lines.append(
            (
                f"{work.label}, a GB",
                *(f"{size * 1e3:.0f}" for size in (work.gigabytes, work.wire_gigabytes)),
                *(f"{row.processor_seconds(name):.2f}" for name in COMMANDS),
                f"{row.wire_processor_seconds(RAW):.2f}",
                *(_ratio(row, name) for name in (DEEP, LIBRDKAFKA)),
                ", ".join(_verdict(row, name) for name in row.targets),
            )
        )
    starts = rows[0].starts
    seconds = (f"{starts[name].processor_seconds:.2f}" for name in COMMANDS)
    lines.append(("start and end, a run", "0", "0", *seconds, *[""] * 4))
    return aligned(lines, left=(0, len(lines[0]) - 1))


def _ratio(row: Row, name: str) -> str:
    return f"{row.ratio(name):.3f} ({row.whole_ratio(name):.2f})"


def _verdict(row: Row, name: str) -> str:
    most = row.targets[name]
    return f"<= {most:g}: {'hit' if row.ratio(name) <= most else 'MISSED'}"


def rates_text(rows: Sequence[Row]) -> str:
    columns = [f"{what}{name}" for what in ("MB/s: ", "peak MiB: ") for name in COMMANDS]
    lines = [("throughput and memory", *columns)]
    for row in rows:
        rates = (f"{row.rate(name):.0f}" for name in COMMANDS)
        lines.append((row.work.label, *rates, *(f"{row.runs[name].peak_mib:.0f}" for name in COMMANDS)))
    starts = rows[0].starts
    lines.append(("no record", *[""] * len(COMMANDS), *(f"{starts[name].peak_mib:.0f}" for name in COMMANDS)))
    return aligned(lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.mirror", description=__doc__)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything measured to FILE")
    parser.add_argument("-k", default="", metavar="TEXT", help="only the rows whose name has TEXT")
    parser.add_argument(
        "--size",
        type=int,
        default=SIZE,
        metavar="MIB",
        help="of a partition, before compression",
    )
    parser.add_argument("--rounds", type=int, default=ROUNDS, metavar="N", help="of which the best counts")
    arguments = parser.parse_args()
    started = time.monotonic()
    works = [work for work in all_works(arguments.size * MIB) if arguments.k in work.label]
    rows: list[Row] = []
    if works:
        with clusters(works) as running:
            rows = list(Copying(running, show_progress).rows(works, arguments.rounds))
    sent = list(requests.measured(arguments.k, show_progress))
    show_progress("")
    tables = [processors_text(rows), rates_text(rows)] if rows else []
    print(*tables, *([requests.as_text(sent)] if sent else []), sep="\n\n")
    print(f"\n{machine()}, kafkafmt {kafkafmt.__version__}, {time.strftime('%Y-%m-%d')}")
    print(f"{time.monotonic() - started:.0f} seconds; what the rows mean: bench/README.md")
    print(*notes_of_load(_USUAL_LOAD), sep="\n")
    if arguments.json:
        measured = {"rows": [asdict(row) for row in rows], "requests": [asdict(one) for one in sent]}
        arguments.json.write_text(json.dumps({"machine": machine(), **measured}, indent=1))


if __name__ == "__main__":
    main()
