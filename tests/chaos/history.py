"""What producers and consumers write down, line by line, so that a killed one leaves what it knew.

A record's value begins with its name: the run of its producer, a colon, and a number that grows by one. A line of a
producer's history begins with a letter:

    s N                  all records below N may have been sent
    a N PARTITION OFFSET the record was acknowledged
    f N ERROR            the record failed
    t FIRST END          the producer asks for the commit of the transaction of these records
    c FIRST END          ... and the commit was acknowledged
    x FIRST END          the transaction was aborted

A consumer's history has, with the time of a clock that all processes share and nobody steps:

    g TIME TOPIC PARTITION             the partition was assigned to this member
    r TIME TOPIC PARTITION OFFSET NAME the record was delivered
    k TIME TOPIC PARTITION OFFSET      the commit of the offset was acknowledged
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple


class Row(NamedTuple):
    """A record in a partition: its offset and its name."""

    offset: int
    name: str


class Place(NamedTuple):
    """Where a producer was told that a record is; the offset is -1 if it was not told."""

    partition: int
    offset: int


class Delivery(NamedTuple):
    """A record as a consumer got it."""

    time: float
    topic: str
    partition: int
    row: Row


class Mark(NamedTuple):
    """An assignment (offset -1), or an acknowledged commit."""

    time: float
    topic: str
    partition: int
    offset: int


@dataclass
class Sent:
    """What one run of a producer knows."""

    run: str
    topic: str
    is_transactional: bool
    end: int = 0
    acked: dict[int, Place] = field(default_factory=dict)
    failed: dict[int, str] = field(default_factory=dict)
    asked: list[range] = field(default_factory=list)
    committed: list[range] = field(default_factory=list)
    aborted: list[range] = field(default_factory=list)


@dataclass
class Received:
    """What one run of a consumer knows, in the order of its lines."""

    run: str
    events: list[Delivery | Mark] = field(default_factory=list)
    commits: list[Mark] = field(default_factory=list)


class Writer:
    """Appends lines to a file; each call writes at once."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def write(self, lines: Iterable[str]) -> None:
        os.write(self._descriptor, "".join(f"{line}\n" for line in lines).encode())


def now() -> str:
    return f"{time.monotonic():.6f}"


def value(run: str, number: int, size: int) -> bytes:
    """The value of a record, padded to the size."""
    return f"{run}:{number} ".encode().ljust(size, b".")


def name_of(data: bytes) -> str:
    return data.split(b" ", 1)[0].decode()


def whole_lines(path: Path) -> list[list[str]]:
    """Those of a history without a line that a kill has cut."""
    whole, _, _cut = path.read_text().rpartition("\n")
    return [line.split() for line in whole.splitlines()]


def read_sent(path: Path, run: str, topic: str, *, is_transactional: bool) -> Sent:
    sent = Sent(run, topic, is_transactional)
    for kind, *words in whole_lines(path):
        number = int(words[0])
        if kind == "s":
            sent.end = number
        elif kind == "a":
            sent.acked[number] = Place(int(words[1]), int(words[2]))
        elif kind == "f":
            sent.failed[number] = words[1]
        else:
            kinds = {"t": sent.asked, "c": sent.committed, "x": sent.aborted}
            kinds[kind].append(range(number, int(words[1])))
    return sent


def read_received(path: Path, run: str) -> Received:
    received = Received(run)
    for kind, at, topic, partition, *words in whole_lines(path):
        if kind == "r":
            row = Row(int(words[0]), words[1])
            received.events.append(Delivery(float(at), topic, int(partition), row))
        elif kind == "g":
            received.events.append(Mark(float(at), topic, int(partition), -1))
        else:
            received.commits.append(Mark(float(at), topic, int(partition), int(words[0])))
    return received
