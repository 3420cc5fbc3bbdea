"""Measures consumers of a real broker, and prints it: every contender a process of its own for each turn."""

from __future__ import annotations

import json
import subprocess
import zlib
from collections.abc import Callable, Iterator, Sequence
from functools import cache

from tests.broker.broker import Broker, BrokerError
from tests.serve import raw_consumer
from tests.serve.raw_consumer import Consumption

from bench import BUILD, ROOT
from bench.broker import broker_of
from bench.clients import Answer, Result, as_table, best_of, take_turns
from bench.consumer.rows import Row, all_rows
from bench.contenders import UnavailableError, own, peer
from bench.peers.consuming import BUDGET_BYTES
from bench.peers.names import CONFLUENT, FLOOR, KAFKA_PYTHON, OURS
from bench.peers.protocol import Tally, measure
from bench.results import Figure, Table
from bench.segments import MIB, Segment, stored
from bench.serve.logs import topic_of
from kafkafmt import FileRecords

CONTENDERS = (OURS, CONFLUENT, KAFKA_PYTHON, FLOOR)
PARTITIONS = 8
# kafka-python is a tenth as fast: it consumes one partition, in one turn.
KAFKA_PYTHON_PARTITIONS = 1
TURNS = {OURS: 2, CONFLUENT: 2, KAFKA_PYTHON: 1, FLOOR: 2}
FETCH_VERSION = 11
_CONSUMING = "bench.peers.consuming"


def measured_rows(
    text: str, unavailable: dict[str, str], show_progress: Callable[[str], None], mebibytes: int
) -> Iterator[Result]:
    """The rows whose name has `text`. mebibytes: of batches before compression, that a run consumes.

    unavailable: gets the contenders that cannot run, and why.
    """
    rows = [row for row in all_rows(mebibytes * MIB // PARTITIONS) if text in row.name]
    if not rows:
        return
    segments = dict.fromkeys(row.segment for row in rows)
    logs = BUILD / "consumer"
    try:
        folders = {_topic(one): [*topic_of(one, 1, logs / "logs").folders] * PARTITIONS for one in segments}
        with broker_of(folders, logs) as broker:
            measuring = Consuming(broker, unavailable, show_progress)
            measuring.warm_up(rows[0])
            for row in rows:
                yield measuring.measured(row)
    except (OSError, BrokerError) as reason:
        unavailable["a broker to consume from"] = str(reason)


def _topic(segment: Segment) -> str:
    return f"bench-{segment.name}"


class Consuming:
    """Lets the contenders consume in turns. What stands in several rows is measured in the first of them."""

    def __init__(
        self, broker: Broker, unavailable: dict[str, str], show_progress: Callable[[str], None]
    ) -> None:
        self._broker, self._unavailable, self._show_progress = broker, unavailable, show_progress
        self._known: dict[tuple[str, Segment], Answer | None] = {}

    def warm_up(self, row: Row) -> None:
        """Let the broker's JVM compile what it runs often."""
        self._show_progress("warming up the broker")
        self._ask(CONFLUENT, row.segment)

    def measured(self, row: Row) -> Result:
        self._show_progress(row.name)
        ways = {OURS: row.way, CONFLUENT: CONFLUENT, KAFKA_PYTHON: KAFKA_PYTHON, FLOOR: FLOOR}
        new = {name: TURNS[name] for name, way in ways.items() if (way, row.segment) not in self._known}
        answers = take_turns(new, lambda name, _: self._ask(ways[name], row.segment))
        for name in new:
            best = best_of(answers[name]) if name in answers else None
            self._known[ways[name], row.segment] = best
        known = {name: self._known[way, row.segment] for name, way in ways.items()}
        measured = {name: answer for name, answer in known.items() if answer is not None}
        return Result(row.name, row.targets, measured)

    def _ask(self, way: str, segment: Segment) -> Answer | None:
        """Consume in a process of its own. Raises AssertionError unless it got the values that are stored."""
        partitions = KAFKA_PYTHON_PARTITIONS if way == KAFKA_PYTHON else PARTITIONS
        records = stored(segment).records * partitions
        if way == FLOOR:
            return self._floor(segment, partitions, records)
        command = peer if way == KAFKA_PYTHON else own
        arguments = self._broker.bootstrap, _topic(segment), str(partitions), str(records)
        try:
            making = command(_CONSUMING, way, *arguments)()
        except UnavailableError as reason:
            self._unavailable[f"{way} (consuming)"] = str(reason)
            return None
        done = subprocess.run(making, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
        answer: Answer = json.loads(done.stdout)
        if "error" in answer:
            return None
        size, checksum = _values_of(segment)
        expected = records, size * partitions, checksum * partitions
        found = answer["count"], answer["produced"], answer["checksum"]
        if found != expected:
            raise AssertionError(f"{way}, {segment.name}: expected {expected}, found {found}")
        return answer

    def _floor(self, segment: Segment, partitions: int, records: int) -> Answer:
        """A socket that receives all batches into one buffer, one fetch at a time, and a scan of their headers."""
        host, _, port = self._broker.bootstrap.rpartition(":")
        ends = dict.fromkeys(range(partitions), stored(segment).records)
        wanted = Consumption(host, int(port), _topic(segment), FETCH_VERSION, ends)

        def run() -> Tally:
            return Tally(raw_consumer.consume(wanted).records)

        answer: Answer = dict(measure(run))
        if answer["count"] != records:
            raise AssertionError(
                f"floor, {segment.name}: expected {records} records, found {answer['count']}"
            )
        return answer


@cache
def _values_of(segment: Segment) -> tuple[int, int]:
    """The bytes of all values, and the sum of the CRC-32 of every value."""
    size = checksum = 0
    with FileRecords(stored(segment).path) as records:
        for batch in records.arrow_batches(["value"]):
            values = batch.column("value").to_pylist()
            size += sum(map(len, values))
            checksum += sum(map(zlib.crc32, values))
    return size, checksum


def tables(results: Sequence[Result]) -> list[Table]:
    title = "Consumers: rates, and processor seconds for a million records"
    return [as_table("consumer", title, "consumer", results, CONTENDERS), _memory_table(results)]


def _memory_table(results: Sequence[Result]) -> Table:
    """What the budget bounds is the memory of ours. librdkafka's queue has the same limit; kafka-python has none."""
    budget = BUDGET_BYTES / MIB
    shown = [name for name in CONTENDERS if name != FLOOR]
    lines: list[tuple[str, ...]] = [("peak resident MiB above the start", *shown, "target", "verdict")]
    for result in results:
        peaks = {name: answer["peak_mib"] for name, answer in result.measured.items() if "peak_mib" in answer}
        cells = (Figure(peaks[name], f"{peaks[name]:.0f}", "MiB") if name in peaks else "-" for name in shown)
        verdict = ("hit" if peaks[OURS] <= budget else "MISSED") if OURS in peaks else "not measured"
        lines.append((result.name.removeprefix("consumer: "), *cells, f"<= {budget:.0f}", verdict))
    title = "Consumers: the most memory that is resident, above the start"
    return Table("consumer_memory", title, lines, left=(0, len(lines[0]) - 1))
