"""`make bench-memory`: one budget from the top down beside bounds for each partition, and the document's questions.

A topic of 4 GB before compression in 64 partitions is replayed and tabled by processes that are refused memory beyond
256 MiB above their start, while partitions are added and taken away every second. Then what is buffered and cached, raw
and decoded; buffers with one bound and in equal parts; the kinds of stores; and what a reservation and the cache cost.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import asdict

from bench.compare import show_progress
from bench.memory import costs, questions, sharing, stores, within
from bench.memory.brute_force import expected_of
from bench.memory.topic import topic_of
from bench.results import add_arguments, notes_of_load, report

MIB = 1024 * 1024
_USUAL_LOAD = 2.0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.memory", description=__doc__)
    add_arguments(parser)
    parser.add_argument(
        "--gb", type=float, default=4, metavar="N", help="of the topic, before compression (4)"
    )
    parser.add_argument("--memory", type=int, default=256, metavar="MIB", help="above the start (256)")
    arguments = parser.parse_args()
    started = time.monotonic()
    text = arguments.k
    show_progress("the topic")
    outcomes = []
    topic = None
    if any(text in work.label for work in within.WORKS):
        topic = topic_of(arguments.gb)
        expected_of(topic)
        outcomes = list(within.measured(topic, arguments.memory * MIB, text, show_progress))
    in_buffers = list(questions.buffered(text, show_progress))
    above_stores = list(questions.cached(text, show_progress))
    shared = list(sharing.measured(text, sharing.MEMORY_BYTES, show_progress))
    kept = list(stores.measured(text, show_progress))
    paid = list(costs.measured(text))
    show_progress("")
    rows = {
        "within": outcomes,
        "buffered": in_buffers,
        "cached": above_stores,
        "sharing": shared,
        "stores": kept,
        "costs": paid,
    }
    report(
        "memory",
        [
            *([within.as_table(outcomes, topic)] if outcomes and topic else ()),
            *([questions.buffered_table(in_buffers)] if in_buffers else ()),
            *([questions.cached_table(above_stores)] if above_stores else ()),
            *([sharing.as_table(shared, sharing.MEMORY_BYTES)] if shared else ()),
            *([stores.as_table(kept)] if kept else ()),
            *([costs.as_table(paid)] if paid else ()),
        ],
        command="make bench-memory",
        path=arguments.json,
        is_whole=not text,
        measured={name: [asdict(row) for row in found] for name, found in rows.items()},
    )
    print(f"{time.monotonic() - started:.0f} seconds; what the rows mean: bench/README.md")
    print(*notes_of_load(_USUAL_LOAD), sep="\n")
    return 0 if all(outcome.is_as_expected for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
