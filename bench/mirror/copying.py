"""Whole topics from cluster to cluster: the contenders take turns, each with a topic that is empty at the target."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from bench.broker import temporary_topic
from bench.mirror.clusters import EMPTY, ROOT, Clusters
from bench.mirror.contenders import (
    ADAPTIVE,
    COMMANDS,
    DEEP,
    EXACTLY_ONCE,
    FLOOR,
    RAW,
    Route,
    floor_command,
    present,
)
from bench.mirror.measure import Measured, Run, run
from bench.mirror.works import Work
from bench.peers.names import CONFLUENT

# How many times the bytes of the other contenders the floor moves, which takes the least.
_FLOOR_TIMES = 4
# Runs of an empty topic for one of a work: their least is subtracted from all works.
_START_ROUNDS = 2


def work_of(contender: str, work: Work, least_wire_bytes: int) -> Work:
    """The work with copies, for the contenders that take the least: else their start would hide what they take."""
    if contender == FLOOR:
        return work.of_wire_bytes(_FLOOR_TIMES * least_wire_bytes)
    if contender in (ADAPTIVE, EXACTLY_ONCE, DEEP if work.is_of_single_records else RAW):
        return work.of_wire_bytes(least_wire_bytes)
    return work


def topics_of(works: Sequence[Work], least_wire_bytes: int) -> list[Work]:
    """The works of all contenders that need a topic, each once."""
    return list(
        dict.fromkeys(
            work_of(name, work, least_wire_bytes) for work in works for name in present() if name != FLOOR
        )
    )


@dataclass(frozen=True)
class Row:
    """A work by each contender, and what each takes for a topic without records: its start, and its end.

    works: by contender, which differ in their copies.
    """

    work: Work
    works: Mapping[str, Work]
    runs: Mapping[str, Measured]
    starts: Mapping[str, Measured]

    def processor_seconds(self, contender: str) -> float:
        """For a GB before compression, without the start."""
        beyond = self.runs[contender].processor_seconds - self.starts[contender].processor_seconds
        return beyond / self.works[contender].gigabytes

    def rate(self, contender: str) -> float:
        """MB before compression a second, without the start."""
        beyond = self.runs[contender].seconds - self.starts[contender].seconds
        return self.works[contender].gigabytes * 1e3 / beyond

    def peak_mib(self, contender: str) -> float:
        """The most memory that was resident, above that of a run without records."""
        return self.runs[contender].peak_mib - self.starts[contender].peak_mib

    def ratio(self, contender: str, *others: str) -> float | None:
        """What a contender takes of the processors, in parts of the least of others; None if one is missing."""
        if not self.runs.keys() >= {contender, *others}:
            return None
        return self.processor_seconds(contender) / min(map(self.processor_seconds, others))


class Copying:
    """Runs the contenders between two clusters.

    least_wire_bytes: that the fastest of them send in a run.
    """

    def __init__(
        self, clusters: Clusters, least_wire_bytes: int, show_progress: Callable[[str], None]
    ) -> None:
        self._clusters, self._least_wire_bytes = clusters, least_wire_bytes
        self._show_progress = show_progress
        self._groups = (f"bench-{number}" for number in itertools.count())

    def rows(self, works: Sequence[Work], rounds: int) -> Iterator[Row]:
        """The first run of all warms the brokers up and does not count."""
        self._run(CONFLUENT, works[0], is_empty=False)
        starts = self._take_turns(dict.fromkeys(present(), works[0]), _START_ROUNDS * rounds, is_empty=True)
        for work in works:
            of_all = {name: work_of(name, work, self._least_wire_bytes) for name in present()}
            yield Row(work, of_all, self._take_turns(of_all, rounds), starts)

    def _take_turns(
        self, works: Mapping[str, Work], rounds: int, *, is_empty: bool = False
    ) -> dict[str, Measured]:
        measured = {name: Measured() for name in works}
        for name in itertools.chain.from_iterable([works] * rounds):
            self._show_progress(f"{EMPTY if is_empty else works[name].topic}: {name}")
            measured[name].runs.append(self._run(name, works[name], is_empty=is_empty))
        return measured

    def _run(self, name: str, work: Work, *, is_empty: bool) -> Run:
        log = ROOT / f"{name.replace(', ', '-')}.log"
        if name == FLOOR:
            with ExitStack() as stack:
                return run(floor_command(work, stack, is_empty=is_empty), log)
        addresses = self._clusters.source.bootstrap, self._clusters.target.bootstrap
        topic = EMPTY if is_empty else work.topic
        route = Route(*addresses, topic, work.partitions, next(self._groups))
        with temporary_topic(self._clusters.target, topic, work.partitions):
            taken = run(COMMANDS[name](route, work), log)
            arrived = self._clusters.records_at_target(topic, work.partitions)
        if arrived != (expected := 0 if is_empty else work.records):
            raise AssertionError(f"{topic}: {name} brought {arrived} records of {expected}")
        return taken
