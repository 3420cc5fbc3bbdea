"""What every driver is told, and how it tells what its client handed out.

    DRIVER BOOTSTRAP RANGE... [--version V] [--isolation I] [--group G [--share]] [--fetch-bytes N] [--time T]

A RANGE is `topic:partition:start:end`, end exclusive. A driver prints a line of JSON for each record: topic,
partition, offset, key and value (base64 or null), timestamp (ms, null for none), and headers where the client has
them. It ends once the client's position is at the end of every range; where that takes too long it fails with a
traceback. Of a group it is the only member, subscribes to the topics, and commits what it has told of. With --share
there are others: it ends at the end of one range. With --fetch-bytes it fetches no more of a partition at a time, and
little ahead. With --time it starts at the first record whose timestamp is that (ms) or a later one.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
from base64 import b64encode
from collections.abc import Iterable
from dataclasses import dataclass

NO_TIMESTAMP = -1
FETCH_BYTES = 1024 * 1024
DEADLINE_SECONDS = 120


@dataclass(frozen=True)
class Range:
    """Offsets of one partition."""

    topic: str
    partition: int
    start: int
    end: int

    @classmethod
    def parse(cls, text: str) -> Range:
        topic, partition, start, end = text.split(":")
        return cls(topic, int(partition), int(start), int(end))


class Task:
    """What to read with which settings, and how far that has come."""

    def __init__(self) -> None:
        parser = argparse.ArgumentParser()
        parser.add_argument("bootstrap")
        parser.add_argument("ranges", nargs="+", type=Range.parse)
        parser.add_argument("--version", help="of the broker that the client is to speak to")
        parser.add_argument("--isolation", default="read_uncommitted")
        parser.add_argument("--group")
        parser.add_argument("--share", action="store_true")
        parser.add_argument("--time", type=int)
        parser.add_argument("--fetch-bytes", type=int, default=FETCH_BYTES)
        told = parser.parse_args()
        self.bootstrap: str = told.bootstrap
        self.ranges: list[Range] = told.ranges
        self.version: str | None = told.version
        self.isolation: str = told.isolation
        self.group: str | None = told.group
        self.fetch_bytes: int = told.fetch_bytes
        self.time: int | None = told.time
        self._is_shared: bool = told.share
        faulthandler.dump_traceback_later(DEADLINE_SECONDS, exit=True)
        self._ends = {(r.topic, r.partition): r.end for r in self.ranges}

    @property
    def version_numbers(self) -> tuple[int, ...] | None:
        return tuple(map(int, self.version.split("."))) if self.version else None

    @property
    def topics(self) -> list[str]:
        return sorted({r.topic for r in self.ranges})

    @property
    def is_done(self) -> bool:
        return not self._ends or (self._is_shared and len(self._ends) < len(self.ranges))

    def is_reading(self, topic: str, partition: int) -> bool:
        return (topic, partition) in self._ends

    def record(
        self,
        topic: str,
        partition: int,
        offset: int,
        key: bytes | None,
        value: bytes | None,
        timestamp: int | None,
        headers: Iterable[tuple[str, bytes | None]] | None = None,
    ) -> None:
        """Tell of a record; behind it the client's position is the next offset."""
        line = {
            "topic": topic,
            "partition": partition,
            "offset": offset,
            "key": _text(key),
            "value": _text(value),
            "timestamp": None if timestamp == NO_TIMESTAMP else timestamp,
        }
        if headers is not None:
            line["headers"] = [(name, _text(content)) for name, content in headers]
        print(json.dumps(line), flush=True)
        self.reached(topic, partition, offset + 1)

    def reached(self, topic: str, partition: int, position: int) -> None:
        """The client will not hand out what lies before `position`."""
        if position >= self._ends.get((topic, partition), position + 1):
            del self._ends[topic, partition]


def _text(data: bytes | None) -> str | None:
    return None if data is None else b64encode(data).decode()
