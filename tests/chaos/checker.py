"""Compares what producers and consumers know with what logs have: pure functions of histories, without a broker.

Each function adds what is wrong to `Findings.problems`, one line each, and what it counted to `Findings.counts`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from chaos.history import Delivery, Mark, Place, Received, Row, Sent

Log = Mapping[int, Sequence[Row]]
"""The records of a topic, in the order of each partition."""

MOST_OF_A_KIND = 10


@dataclass
class Findings:
    """What was found wrong, and what was counted."""

    problems: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    _kinds: Counter[str] = field(default_factory=Counter)

    def add(self, kind: str, detail: str) -> None:
        self._kinds[kind] += 1
        if self._kinds[kind] <= MOST_OF_A_KIND:
            self.problems.append(f"{kind}: {detail}")
        elif self._kinds[kind] == MOST_OF_A_KIND + 1:
            self.problems.append(f"{kind}: and more")

    def kinds(self) -> dict[str, int]:
        return dict(self._kinds)


def check_log(topic: str, log: Log, all_sent: Iterable[Sent], findings: Findings) -> None:
    """Check a source topic, as a reader of committed records sees it.

    - Each acknowledged record is where its producer was told, unless its transaction was not committed.
    - No record is there twice, and each was sent.
    - The records of a producer's run keep their order in each partition.
    - A transaction is there as a whole or not at all.
    """
    places: dict[str, dict[int, Place]] = defaultdict(dict)
    for partition, rows in log.items():
        reached: dict[str, int] = {}
        for offset, name in rows:
            run, _, text = name.rpartition(":")
            number = int(text)
            if number in places[run]:
                findings.add("doubled", f"{topic}-{partition}@{offset} is {name}, as {places[run][number]}")
            elif number < reached.get(run, -1):
                findings.add("order", f"{topic}-{partition}@{offset} is {name}, after {run}:{reached[run]}")
            places[run][number] = Place(partition, offset)
            reached[run] = max(number, reached.get(run, -1))
    for sent in all_sent:
        if sent.topic == topic:
            _check_run(sent, places.pop(sent.run, {}), findings)
    for run, left in places.items():
        findings.add("unknown", f"{topic} has {len(left)} records of {run}, which wrote no history")
    findings.counts["records"] += sum(map(len, log.values()))


def _check_run(sent: Sent, places: Mapping[int, Place], findings: Findings) -> None:
    for number in places:
        if number >= sent.end:
            findings.add("unknown", f"{sent.run}:{number} was never sent")
    certain = {n for span in sent.committed for n in span} if sent.is_transactional else sent.acked.keys()
    findings.counts["acknowledged"] += len(certain)
    findings.counts["acknowledged without an offset"] += sum(
        place.offset < 0 for place in sent.acked.values()
    )
    for number in certain:
        told = sent.acked.get(number)
        if number not in places:
            findings.add("lost", f"{sent.topic}: {sent.run}:{number}, acknowledged at {told}")
        elif told is not None and told.offset >= 0 and told != places[number]:
            findings.add("moved", f"{sent.topic}: {sent.run}:{number} is at {places[number]}, not {told}")
    if sent.is_transactional:
        _check_transactions(sent, places, findings)


def _check_transactions(sent: Sent, places: Mapping[int, Place], findings: Findings) -> None:
    for span in sent.asked:
        present = sum(number in places for number in span)
        if 0 < present < len(span):
            findings.add(
                "atomicity", f"{present} of {len(span)} records of {sent.run}:{span.start} were committed"
            )
    may_be_there = {number for span in sent.asked for number in span}
    may_be_there -= {number for span in sent.aborted for number in span}
    for number in places.keys() - may_be_there:
        findings.add("aborted", f"{sent.run}:{number} is in {sent.topic}, but nobody committed it")
    findings.counts["transactions"] += len(sent.committed)


def check_copy(what: str, source: Log, copy: Log, findings: Findings, *, is_exact: bool) -> None:
    """Check that a copy has each record of the source, in the order of its partition.

    An exact copy has each once. Any other may go back to an earlier record, and repeat what follows it.
    """
    for partition, rows in source.items():
        positions = {row.name: position for position, row in enumerate(rows)}
        previous = reached = -1
        doubled = 0
        for offset, name in copy.get(partition, ()):
            where = f"{what}-{partition}@{offset}"
            position = positions.get(name)
            if position is None:
                findings.add("unknown", f"{where} is {name}, which the source does not have")
                continue
            if position <= reached:
                doubled += 1
                if is_exact:
                    findings.add("doubled", f"{where} is {name} again")
            elif position > reached + 1:
                findings.add(
                    "lost", f"{where} is {name}: {position - reached - 1} records before it are absent"
                )
            if position > previous + 1 and position <= reached:
                findings.add(
                    "order", f"{where} is {name}, {position - previous} records after its predecessor"
                )
            previous, reached = position, max(position, reached)
        if reached < len(rows) - 1:
            findings.add("lost", f"{what}-{partition} ends {len(rows) - 1 - reached} records early")
        findings.counts[f"doubled in {what}"] += doubled


def check_same(what: str, source: Log, copy: Log, findings: Findings) -> None:
    """Check that a copy has the same records at the same offsets."""
    for partition, rows in source.items():
        copied = copy.get(partition, ())
        if list(rows) == list(copied):
            continue
        pairs = zip(rows, copied)  # noqa: B905
        first = next(
            (n for n, (mine, other) in enumerate(pairs) if mine != other), min(len(rows), len(copied))
        )
        found = copied[first] if first < len(copied) else f"its end after {len(copied)}"
        expected = rows[first] if first < len(rows) else f"the end after {len(rows)}"
        findings.add("differs", f"{what}-{partition}: expected {expected}, found {found}")


def check_deliveries(
    what: str, logs: Mapping[str, Log], all_received: Iterable[Received], findings: Findings
) -> None:
    """Check what the members of a group got: each record at least once, and none again that was committed before.

    - A member gets the records of a partition in their order, from its assignment to the next one.
    - What it first gets after an assignment is not before an offset whose commit was acknowledged before that.
    """
    received = list(all_received)
    committed = _Commits(received)
    delivered: dict[tuple[str, int], Counter[int]] = defaultdict(Counter)
    for member in received:
        position: dict[tuple[str, int], int] = {}
        assigned: dict[tuple[str, int], float] = {}
        for event in member.events:
            where = (event.topic, event.partition)
            if isinstance(event, Mark):
                assigned[where] = event.time
                position.pop(where, None)
                continue
            offset = event.row.offset
            delivered[where][offset] += 1
            _check_row(what, logs, event, findings)
            if (
                where not in position
                and (known := committed.before(where, assigned.get(where, 0.0))) > offset
            ):
                findings.add(
                    "rewound", f"{what}: {member.run} got {where}@{offset}, after the commit of {known}"
                )
            if offset <= position.get(where, -1):
                findings.add("order", f"{what}: {member.run} got {where}@{offset} after {position[where]}")
            position[where] = offset
    for topic, log in logs.items():
        for partition, rows in log.items():
            counts = delivered[topic, partition]
            missed = [row for row in rows if row.offset not in counts]
            for row in missed:
                findings.add("lost", f"{what}: nobody got {topic}-{partition}@{row.offset}, {row.name}")
            findings.counts[f"delivered to {what}"] += counts.total()
            findings.counts[f"delivered to {what} again"] += counts.total() - len(counts)


def _check_row(what: str, logs: Mapping[str, Log], event: Delivery, findings: Findings) -> None:
    rows = logs[event.topic].get(event.partition, ())
    place = bisect_right(rows, event.row.offset, key=lambda row: row.offset) - 1
    if place < 0 or rows[place] != event.row:
        findings.add(
            "unknown", f"{what} got {event.row} of {event.topic}-{event.partition}, which is not there"
        )


class _Commits:
    """The highest committed offset of each partition at any time."""

    def __init__(self, received: Iterable[Received]) -> None:
        self._marks: dict[tuple[str, int], list[tuple[float, int]]] = defaultdict(list)
        for mark in sorted(mark for member in received for mark in member.commits):
            marks = self._marks[mark.topic, mark.partition]
            marks.append((mark.time, max(mark.offset, marks[-1][1] if marks else -1)))

    def before(self, where: tuple[str, int], at: float) -> int:
        marks = self._marks.get(where, [])
        place = bisect_right(marks, (at, -1))
        return marks[place - 1][1] if place else -1
