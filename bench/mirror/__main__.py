"""`make bench-mirror`: what mirroring a GB takes, raw and deep, beside a loop of confluent-kafka's clients.

From a real broker of Kafka 3.9.1 to one of Kafka 4 on this machine, every contender a process of its own, which starts,
mirrors a whole topic and ends. Seconds of the processors are the least of the runs, of the mirroring process alone.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import asdict

from bench.compare import show_progress
from bench.mirror import requests
from bench.mirror.clusters import clusters
from bench.mirror.contenders import COMMANDS, DEEP, LIBRDKAFKA, RAW
from bench.mirror.copying import Copying, Row
from bench.mirror.works import all_works
from bench.results import Table, add_arguments, figure, notes_of_load, report
from bench.segments import MIB

ROUNDS = 2
SIZE = 32
# The brokers' threads and the mirror's: less is others' work.
_USUAL_LOAD = 4.0


def processors_table(rows: Sequence[Row]) -> Table:
    lines: list[tuple[str, ...]] = [
        (
            "processors' seconds",
            "MB",
            "of wire",
            *COMMANDS,
            "raw a GB of wire",
            "raw/deep",
            "raw/confluent",
            "verdict",
        )
    ]
    for row in rows:
        work = row.work
        lines.append(
            (
                f"{work.label}, a GB",
                *(f"{size * 1e3:.0f}" for size in (work.gigabytes, work.wire_gigabytes)),
                *(figure(row.processor_seconds(name), ".2f", "s/GB") for name in COMMANDS),
                f"{row.wire_processor_seconds(RAW):.2f}",
                *(_ratio(row, name) for name in (DEEP, LIBRDKAFKA)),
                ", ".join(_verdict(row, name) for name in row.targets),
            )
        )
    starts = rows[0].starts
    seconds = (f"{starts[name].processor_seconds:.2f}" for name in COMMANDS)
    lines.append(("start and end, a run", "0", "0", *seconds, *[""] * 4))
    title = "Seconds of the processors of the mirroring process, for each GB of batches before compression"
    return Table("processors", title, lines, left=(0, len(lines[0]) - 1))


def _ratio(row: Row, name: str) -> str:
    return f"{row.ratio(name):.3f} ({row.whole_ratio(name):.2f})"


def _verdict(row: Row, name: str) -> str:
    most = row.targets[name]
    return f"<= {most:g}: {'hit' if row.ratio(name) <= most else 'MISSED'}"


def rates_table(rows: Sequence[Row]) -> Table:
    columns = [f"{what}{name}" for what in ("MB/s: ", "peak MiB: ") for name in COMMANDS]
    lines: list[tuple[str, ...]] = [("throughput and memory", *columns)]
    for row in rows:
        rates = (figure(row.rate(name), ".0f", "MB/s") for name in COMMANDS)
        lines.append((row.work.label, *rates, *(f"{row.runs[name].peak_mib:.0f}" for name in COMMANDS)))
    starts = rows[0].starts
    lines.append(("no record", *[""] * len(COMMANDS), *(f"{starts[name].peak_mib:.0f}" for name in COMMANDS)))
    return Table("rates", "MB/s, and the most memory that was resident", lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.mirror", description=__doc__)
    add_arguments(parser)
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
    report(
        "mirror",
        [
            *([processors_table(rows), rates_table(rows)] if rows else ()),
            *([requests.as_table(sent)] if sent else ()),
        ],
        command="make bench-mirror",
        path=arguments.json,
        is_whole=not arguments.k,
        measured={"rows": [asdict(row) for row in rows], "requests": [asdict(one) for one in sent]},
    )
    print(f"{time.monotonic() - started:.0f} seconds; what the rows mean: bench/README.md")
    print(*notes_of_load(_USUAL_LOAD), sep="\n")


if __name__ == "__main__":
    main()
