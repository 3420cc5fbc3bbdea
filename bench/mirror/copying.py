"""Whole topics from cluster to cluster: the contenders take turns, each with a topic that is empty at the target."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from bench.mirror.clusters import EMPTY, ROOT, Clusters
from bench.mirror.contenders import COMMANDS, DEEP, LIBRDKAFKA, RAW, Route
from bench.mirror.measure import Measured, Run, run
from bench.mirror.works import Work

MOST_OF_LIBRDKAFKA = 0.25


@dataclass(frozen=True)
class Row:
    """A work by each contender, and what each takes for a topic without records: its start, and its end."""

    work: Work
    runs: dict[str, Measured]
    starts: dict[str, Measured]

    def processor_seconds(self, contender: str) -> float:
        """For a GB before compression, without the start."""
        return self._beyond_start(contender) / self.work.gigabytes

    def wire_processor_seconds(self, contender: str) -> float:
        """For a GB as it is sent."""
        return self._beyond_start(contender) / self.work.wire_gigabytes

    def _beyond_start(self, contender: str) -> float:
        return self.runs[contender].processor_seconds - self.starts[contender].processor_seconds

    def rate(self, contender: str) -> float:
        """MB before compression a second, without the start."""
        return self.work.gigabytes * 1e3 / (self.runs[contender].seconds - self.starts[contender].seconds)

    def ratio(self, contender: str) -> float:
        """What raw takes of the processors, in parts of what the other one takes."""
        return self.processor_seconds(RAW) / self.processor_seconds(contender)

    def whole_ratio(self, contender: str) -> float:
        """The same with the starts."""
        return self.runs[RAW].processor_seconds / self.runs[contender].processor_seconds

    @property
    def targets(self) -> dict[str, float]:
        """What raw may take at most, in parts of what each of these takes."""
        deep = {} if self.work.most_of_deep is None else {DEEP: self.work.most_of_deep}
        return {**deep, LIBRDKAFKA: MOST_OF_LIBRDKAFKA}


class Copying:
    """Runs the contenders between two clusters."""

    def __init__(self, clusters: Clusters, show_progress: Callable[[str], None]) -> None:
        self._clusters, self._show_progress = clusters, show_progress
        self._groups = (f"bench-{number}" for number in itertools.count())

    def rows(self, works: Sequence[Work], rounds: int) -> Iterator[Row]:
        """The first run of all warms the brokers up and does not count."""
        self._run(LIBRDKAFKA, works[0], works[0].topic)
        starts = self._take_turns(works[0], EMPTY, rounds)
        for work in works:
            yield Row(work, self._take_turns(work, work.topic, rounds), starts)

    def _take_turns(self, work: Work, topic: str, rounds: int) -> dict[str, Measured]:
        measured = {name: Measured() for name in COMMANDS}
        for name in itertools.chain.from_iterable([COMMANDS] * rounds):
            self._show_progress(f"{topic}: {name}")
            measured[name].runs.append(self._run(name, work, topic))
        return measured

    def _run(self, name: str, work: Work, topic: str) -> Run:
        ends = self._clusters.source.bootstrap, self._clusters.target.bootstrap
        route = Route(*ends, topic, work.partitions, next(self._groups))
        log = ROOT / f"{name.replace(', ', '-')}.log"
        with self._clusters.target_topic(topic, work.partitions):
            taken = run(COMMANDS[name](route, work), log)
            arrived = self._clusters.records_at_target(topic, work.partitions)
        if arrived != (expected := 0 if topic == EMPTY else work.records):
            raise AssertionError(f"{topic}: {name} brought {arrived} records of {expected}")
        return taken
