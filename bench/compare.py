"""`make bench`: what kafkafmt does, what its peers do, the floor, the ratios and the targets.

All rows are measured in one run on the same segments, one contender at a time. Rates are those of the best run
(the median is in the JSON). Every contender must have gone through the same number of records. Tables of their own
have the producer path (`bench.producer`), consumers (`bench.consumer`), and how often batches are split
(`bench.splitting`).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field
from typing import Any

from bench import ROOT
from bench.consumer import measure as consumer
from bench.contenders import COMMANDS, Contenders
from bench.peers.names import AIOKAFKA, FLOOR, JAVA, KAFKA_PYTHON, OURS
from bench.producer import measure as producer
from bench.results import Figure, Table, add_arguments, notes_of_load, report
from bench.rows import Row, Target, all_rows
from bench.segments import Segment, stored
from bench.splitting import experiment as splitting
from kafkafmt import Codec

PEERS = (JAVA, AIOKAFKA, KAFKA_PYTHON, FLOOR)
MOST_CHUNKS = 3.0
SENT, CONSUMED = 256, 512


@dataclass
class Result:
    """One row, measured: rates in the row's unit by contender; None where there is none."""

    name: str
    unit: str
    records: int
    batches: int
    size_in_bytes: int
    floor_name: str
    rates: dict[str, float]
    targets: list[tuple[str, bool | None]]
    measured: dict[str, Any] = field(default_factory=dict)

    def ratio(self, contender: str) -> float | None:
        if contender not in self.rates or OURS not in self.rates:
            return None
        return self.rates[OURS] / self.rates[contender]


def measure_row(row: Row, contenders: Contenders) -> Result:
    segment = stored(row.segment)
    amount = getattr(segment, row.unit.fact) * row.copies / row.unit.scale
    rates, measured = {}, {}
    for name, works in row.works.items():
        answers = {work: contenders.ask(name, work, segment.path) for work in works}
        known = {work: answer for work, answer in answers.items() if answer is not None}
        if known:
            best = min(known.values(), key=lambda answer: float(answer["seconds"]))
            rates[name] = amount / float(best["seconds"])
            measured[name] = known
    _check_counts(row, segment.records, segment.batches, measured)
    facts = (segment.records, segment.batches, segment.size_in_bytes)
    targets = [(str(target), _is_hit(target, rates)) for target in row.targets]
    return Result(row.name, row.unit.text, *facts, row.floor_name, rates, targets, measured)


def _check_counts(row: Row, records: int, batches: int, measured: dict[str, dict[str, Any]]) -> None:
    for name, answers in measured.items():
        if name == FLOOR:
            continue
        for work, answer in answers.items():
            if answer["count"] not in (records * row.copies, batches):
                raise AssertionError(
                    f"{row.name}: {name}'s {work} went through {answer['count']} of {records}"
                )


def _is_hit(target: Target, rates: dict[str, float]) -> bool | None:
    if OURS not in rates:
        return None
    if target.against is None:
        return rates[OURS] >= target.least
    against = rates.get(target.against)
    return None if against is None else rates[OURS] >= target.least * against


def measure_peak(codec: Codec) -> Result:
    """Memory: the peak of a lazy conversion beyond its largest batch, in chunks; less is better."""
    segment = stored(Segment(codec))
    command = [sys.executable, "-m", "bench.peers.peak", str(segment.path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    answer = json.loads(done.stdout)
    chunks = (answer["peak"] - answer["largest_batch"]) / answer["chunk_size"]
    name = f"peak memory of a lazy conversion, {codec.name.lower()}, 100 B"
    targets: list[tuple[str, bool | None]] = [(f"<= {MOST_CHUNKS:.0f}", chunks <= MOST_CHUNKS)]
    facts = (segment.records, segment.batches, segment.size_in_bytes)
    return Result(name, "chunks", *facts, "", {OURS: chunks}, targets, {OURS: answer})


def measured_rows(text: str, contenders: Contenders) -> list[Result]:
    """The rows whose name has `text`."""
    results = []
    for row in all_rows():
        if text in row.name:
            show_progress(row.name)
            result = measure_row(row, contenders)
            if OURS in result.rates:
                results.append(result)
    if text in "peak memory of a lazy conversion":
        results += [measure_peak(codec) for codec in (Codec.NONE, Codec.LZ4)]
    return results


HEADINGS = ("workload", "unit", "ours", *PEERS, "target", "verdict")


def as_table(results: list[Result]) -> Table:
    """Beside each rate of a peer or a floor stands how many times as fast ours is."""
    lines: list[tuple[str, ...]] = [HEADINGS]
    head = None
    for result in results:
        if head is None or not result.name.startswith(f"{head}, "):
            head = result.name
        lines.append((_label(result.name, head), *_cells(result)))
    title = "Rates of the kernels"
    return Table("kernels", title, lines, left=(0, 1, len(HEADINGS) - 2, len(HEADINGS) - 1))


def _label(name: str, head: str) -> str:
    """A row that varies the one above it says only how."""
    return name if name == head else f"    {name.removeprefix(head + ', ')}"


def _cells(result: Result) -> tuple[str, ...]:
    verdicts = {True: "hit", False: "MISSED", None: "not measured"}
    return (
        result.unit,
        Figure(result.rates[OURS], _number(result.rates[OURS]), result.unit) if OURS in result.rates else "-",
        *(_against(result, peer) for peer in PEERS),
        ", ".join(text for text, _ in result.targets),
        ", ".join(verdicts[hit] for _, hit in result.targets),
    )


def _against(result: Result, peer: str) -> str:
    ratio = result.ratio(peer)
    if ratio is None:
        return "-"
    name = f"{result.floor_name} " if peer == FLOOR else ""
    rate = result.rates[peer]
    return Figure(rate, f"{name}{_number(rate)} ({_number(ratio)}x)", result.unit)


def _number(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def notes(results: list[Result], contenders: Contenders) -> list[str]:
    lines = [f"{name}: left out: {reason}" for name, reason in contenders.unavailable.items()]
    if any(result.floor_name == "ISA-L" and FLOOR not in result.rates for result in results):
        lines.append("ISA-L: not installed (Debian: apt-get install libisal2)")
    return lines


def show_progress(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.compare", description=__doc__)
    add_arguments(parser)
    parser.add_argument(
        "--sent", type=int, default=SENT, metavar="MIB", help="of values that a run sends to a broker"
    )
    parser.add_argument(
        "--consumed", type=int, default=CONSUMED, metavar="MIB", help="of batches that a run consumes"
    )
    arguments = parser.parse_args()
    started = time.monotonic()
    with Contenders(COMMANDS, "compare") as contenders:
        results = measured_rows(arguments.k, contenders)
        producing = list(producer.measured_rows(arguments.k, contenders, show_progress, arguments.sent))
        consuming = list(
            consumer.measured_rows(arguments.k, contenders.unavailable, show_progress, arguments.consumed)
        )
        split = list(splitting.measured_cases(arguments.k, show_progress))
        show_progress("")
    measured = {"rows": results, "producer": producing, "consumer": consuming, "splitting": split}
    report(
        "bench",
        [
            *([as_table(results)] if results else ()),
            *([producer.table(producing)] if producing else ()),
            *(consumer.tables(consuming) if consuming else ()),
            *(splitting.as_tables(split) if split else ()),
        ],
        command="make bench",
        path=arguments.json,
        is_whole=not arguments.k,
        measured={name: [asdict(result) for result in of_a_kind] for name, of_a_kind in measured.items()},
    )
    print(f"{time.monotonic() - started:.0f} seconds; what the rows mean: bench/README.md")
    print(*notes(results, contenders), *notes_of_load(1.5), sep="\n")


if __name__ == "__main__":
    main()
