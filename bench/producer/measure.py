"""Measures the producer path, row by row, and prints it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from tests.broker.broker import Broker, BrokerError

from bench import BUILD
from bench.broker import broker_in, temporary_topic
from bench.clients import Answer, Result, as_table, best_of, take_turns
from bench.contenders import Contenders, own, peer
from bench.peers.names import KAFKA_PYTHON, LIBRDKAFKA, OURS
from bench.peers.sending import PARTITIONS, topic_of
from bench.producer.arrival import arrived, expected
from bench.producer.rows import Row, all_rows
from bench.results import Table
from bench.segments import stored

CONTENDERS = (OURS, KAFKA_PYTHON, LIBRDKAFKA)
# kafka-python is a tenth as fast: what it sends in a run is less, and it runs in one turn.
TURNS = {OURS: 2, KAFKA_PYTHON: 1, LIBRDKAFKA: 2}
_KAFKA_PYTHON_MEBIBYTES = 16
_SENDING = "bench.peers.sending"


def measured_rows(
    text: str, contenders: Contenders, show_progress: Callable[[str], None], mebibytes: int
) -> Iterator[Result]:
    """The rows whose name has `text`: those that need a broker by producers of their own, behind the others.

    mebibytes: of values, that a run sends to a broker.
    """
    sending = []
    for row in all_rows():
        if text not in row.name:
            continue
        if row.needs_broker:
            sending.append(row)
            continue
        show_progress(row.name)
        yield _accumulated(row, contenders)
    if not sending:
        return
    try:
        with broker_in(BUILD) as broker, _senders(broker.bootstrap, mebibytes) as senders:
            measuring = Sending(broker, senders, show_progress)
            measuring.warm_up(sending[0])
            for row in sending:
                yield measuring.measured(row)
            contenders.unavailable |= {f"{name} (sending)": why for name, why in senders.unavailable.items()}
    except (OSError, BrokerError) as reason:
        contenders.unavailable["a broker to send to"] = str(reason)


def _accumulated(row: Row, contenders: Contenders) -> Result:
    segment = stored(row.segment)
    result = Result(row.name, row.targets)
    for name, work in row.works.items():
        answer = contenders.ask(name, work, segment.path)
        if answer is not None:
            if answer["count"] != segment.records:
                raise AssertionError(f"{row.name}: {name} had {answer['count']} of {segment.records} records")
            result.measured[name] = answer
    return result


def _senders(server: str, mebibytes: int) -> Contenders:
    size = str(mebibytes)
    commands = {
        OURS: own(_SENDING, OURS, server, size),
        KAFKA_PYTHON: peer(_SENDING, KAFKA_PYTHON, server, str(min(mebibytes, _KAFKA_PYTHON_MEBIBYTES))),
        LIBRDKAFKA: own(_SENDING, LIBRDKAFKA, server, size),
    }
    return Contenders(commands, "sending")


class Sending:
    """Lets the contenders send in turns. What stands in several rows is measured in the first of them."""

    def __init__(self, broker: Broker, senders: Contenders, show_progress: Callable[[str], None]) -> None:
        self._broker, self._senders, self._show_progress = broker, senders, show_progress
        self._known: dict[tuple[str, str, int], Answer | None] = {}

    def warm_up(self, row: Row) -> None:
        """Let the broker's JVM compile what it runs often."""
        self._show_progress("warming up the broker")
        self._ask(row, LIBRDKAFKA, turn=-1)

    def measured(self, row: Row) -> Result:
        self._show_progress(row.name)
        new = {name: TURNS[name] for name in row.works if _key(row, name) not in self._known}
        answers = take_turns(new, lambda name, turn: self._ask(row, name, turn))
        self._known |= {_key(row, name): best_of(answers[name]) if name in answers else None for name in new}
        known = {name: self._known[_key(row, name)] for name in row.works}
        measured = {name: answer for name, answer in known.items() if answer is not None}
        return Result(row.name, row.targets, measured)

    def _ask(self, row: Row, name: str, turn: int) -> Answer | None:
        """Into an empty topic, which is removed afterwards, so that no turn pays for the one before it."""
        topic = topic_of(name, row.works[name], row.segment.value_size)
        with temporary_topic(self._broker, topic, PARTITIONS):
            answer = self._senders.ask(name, row.works[name], stored(row.segment).path, turn)
            if answer is not None:
                runs = answer["runs"] + 1  # with the one to warm up
                wanted, found = expected(row.segment, answer["count"] * runs), arrived(self._broker, topic)
                if wanted != found:
                    raise AssertionError(f"{topic}: sent {wanted}, found {found}")
        return answer


def _key(row: Row, name: str) -> tuple[str, str, int]:
    return name, row.works[name], row.segment.value_size


def table(results: Sequence[Result]) -> Table:
    title = "Producer path: rates, and processor seconds for a million records"
    return as_table("producer", title, "producer path", results, CONTENDERS)
