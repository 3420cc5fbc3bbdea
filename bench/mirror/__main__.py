"""`make bench-mirror`: what mirroring a GB takes, adaptive, raw and deep, beside a loop of confluent-kafka's clients.

From a real broker of Kafka 3.9.1 to one of Kafka 4 on this machine, every contender a process of its own, which starts,
mirrors a whole topic and ends. Seconds of the processors are the least of the runs, of the mirroring process alone.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import asdict

from bench.compare import show_progress
from bench.mirror import requests
from bench.mirror.clusters import clusters
from bench.mirror.copying import Copying, Row, topics_of
from bench.mirror.tables import notes, tables
from bench.mirror.works import PARTITIONS, all_works
from bench.results import add_arguments, notes_of_load, report
from bench.segments import MIB

ROUNDS = 2
SIZE = 32
# The brokers' threads and the mirror's: less is others' work.
_USUAL_LOAD = 4.0


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
        least = arguments.size * MIB * PARTITIONS  # as without compression
        with clusters(topics_of(works, least)) as running:
            rows = list(Copying(running, least, show_progress).rows(works, arguments.rounds))
    sent = list(requests.measured(arguments.k, show_progress))
    show_progress("")
    report(
        "mirror",
        [
            *tables(rows),
            *([requests.as_table(sent)] if sent else ()),
        ],
        command="make bench-mirror",
        path=arguments.json,
        is_whole=not arguments.k,
        measured={"rows": [asdict(row) for row in rows], "requests": [asdict(one) for one in sent]},
    )
    print(f"{time.monotonic() - started:.0f} seconds; what the rows mean: bench/README.md")
    print(*notes(), *notes_of_load(_USUAL_LOAD), sep="\n")


if __name__ == "__main__":
    main()
