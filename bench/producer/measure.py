"""Measures the producer path, row by row, and prints it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from kafka import KafkaConsumer, TopicPartition
from tests.broker.broker import Broker, BrokerError

from bench import BUILD
from bench.broker import broker_in
from bench.contenders import Contenders, own, peer
from bench.peers.sending import PARTITIONS, topic_of
from bench.producer.rows import LIBRDKAFKA, Row, all_rows
from bench.results import Figure, Table
from bench.rows import KAFKA_PYTHON, OURS
from bench.segments import StoredSegment, stored

CONTENDERS = (OURS, KAFKA_PYTHON, LIBRDKAFKA)
_SENDING = "bench.peers.sending"


@dataclass
class Result:
    """A row, measured: what each contender's process said (`peers.protocol.measure`)."""

    name: str
    records: int
    least_times: float | None
    measured: dict[str, dict[str, Any]] = field(default_factory=dict)

    def rate(self, contender: str) -> float:
        """Million records a second."""
        return self.records / float(self.measured[contender]["seconds"]) / 1e6

    def processor_seconds(self, contender: str) -> float:
        """Seconds of the processor for a million records, in all threads of the process."""
        return float(self.measured[contender]["processor_seconds"]) / self.records * 1e6

    def times(self, contender: str) -> float:
        """How many times the processor's seconds of ours it takes."""
        return self.processor_seconds(contender) / self.processor_seconds(OURS)

    @property
    def verdict(self) -> str:
        if self.least_times is None:
            return ""
        if not self.measured.keys() >= {OURS, KAFKA_PYTHON}:
            return "not measured"
        return "hit" if self.times(KAFKA_PYTHON) >= self.least_times else "MISSED"


def measured_rows(
    text: str, contenders: Contenders, show_progress: Callable[[str], None]
) -> Iterator[Result]:
    """The rows whose name has `text`: those that need a broker by producers of their own, behind the others."""
    sending = []
    for row in all_rows():
        if text not in row.name:
            continue
        if row.needs_broker:
            sending.append(row)
            continue
        show_progress(row.name)
        yield _measured(row, stored(row.segment), contenders)
    if not sending:
        return
    try:
        with _broker_with_topics(sending) as broker, _senders(broker.bootstrap) as senders:
            for row in sending:
                show_progress(row.name)
                yield _measured_sending(row, senders, broker.bootstrap)
            contenders.unavailable |= {f"{name} (sending)": why for name, why in senders.unavailable.items()}
    except (OSError, BrokerError) as reason:
        contenders.unavailable["a broker to send to"] = str(reason)


def _measured(row: Row, segment: StoredSegment, contenders: Contenders) -> Result:
    result = Result(row.name, segment.records, row.least_times)
    for name, work in row.works.items():
        answer = contenders.ask(name, work, segment.path)
        if answer is not None:
            if answer["count"] != segment.records:
                raise AssertionError(f"{row.name}: {name} had {answer['count']} of {segment.records} records")
            result.measured[name] = answer
    return result


@contextmanager
def _broker_with_topics(rows: Iterable[Row]) -> Iterator[Broker]:
    """A real broker with a server's JVM, and for each work of each contender a topic."""
    with broker_in(BUILD) as broker:
        for row in rows:
            for name, work in row.works.items():
                broker.create_topic(topic_of(name, work, row.segment.value_size), PARTITIONS)
        yield broker


def _senders(server: str) -> Contenders:
    commands = {
        OURS: own(_SENDING, OURS, server),
        KAFKA_PYTHON: peer(_SENDING, KAFKA_PYTHON, server),
        LIBRDKAFKA: own(_SENDING, LIBRDKAFKA, server),
    }
    return Contenders(commands, "sending")


def _measured_sending(row: Row, senders: Contenders, server: str) -> Result:
    result = _measured(row, stored(row.segment), senders)
    for name, answer in result.measured.items():
        _check_arrived(server, topic_of(name, row.works[name], row.segment.value_size), answer)
    return result


def _check_arrived(server: str, topic: str, answer: dict[str, Any]) -> None:
    """Every record of every run, the one to warm up included, is in the topic once."""
    partitions = [TopicPartition(topic, number) for number in range(PARTITIONS)]
    consumer = KafkaConsumer(bootstrap_servers=server)
    try:
        arrived = sum(consumer.end_offsets(partitions).values())
    finally:
        consumer.close()
    sent = answer["count"] * (answer["runs"] + 1)
    if arrived != sent:
        raise AssertionError(f"{topic}: sent {sent} records, found {arrived}")


def as_table(results: Sequence[Result]) -> Table:
    """For each contender its rate, what it takes of the processor, and how many times ours that is."""
    lines = [_heading()]
    for result in results:
        cells = (cell for name in CONTENDERS for cell in _cells(result, name))
        target = f">= {result.least_times:.3g}x" if result.least_times else ""
        lines.append((result.name.removeprefix("producer: "), *cells, target, result.verdict))
    title = "Producer path: rates, and seconds of the processor for a million records"
    return Table("producer", title, lines, left=(0, len(lines[0]) - 2, len(lines[0]) - 1))


def _heading() -> tuple[str, ...]:
    cells = (cell for name in CONTENDERS for cell in (f"{name} M rec/s", "CPU s/M rec"))
    return ("producer path", *cells, "target", "verdict")


def _cells(result: Result, name: str) -> tuple[str, str]:
    if name not in result.measured:
        return "-", "-"
    rate, seconds = result.rate(name), result.processor_seconds(name)
    compared = "" if name == OURS or OURS not in result.measured else f" ({result.times(name):.1f}x)"
    return Figure(rate, f"{rate:.2f}", "M rec/s"), Figure(seconds, f"{seconds:.2f}{compared}", "s/M rec")
