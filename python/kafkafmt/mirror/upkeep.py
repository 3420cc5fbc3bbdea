"""Prepare topics at the target, when partitions begin and at an interval, and report those that are not mirrored."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import kafka.errors as kafka_errors
import structlog

from kafkafmt._util.names import some_names
from kafkafmt.mirror.admin_client import UnansweredError
from kafkafmt.mirror.errors import MirrorError

if TYPE_CHECKING:
    from kafkafmt.mirror.admission import Admission, Refusal
    from kafkafmt.mirror.options import MirrorOptions
    from kafkafmt.mirror.protocols import Source, Target
    from kafkafmt.mirror.statistics import Statistics

_log = structlog.get_logger()


class TopicUpkeep:
    """Keeps the target's topics as the source's are, except those that `admission` refuses."""

    def __init__(
        self,
        options: MirrorOptions,
        source: Source,
        target: Target,
        statistics: Statistics,
        admission: Admission,
    ) -> None:
        self._options, self._source, self._target = options, source, target
        self._statistics, self._admission = statistics, admission
        self._reported: set[str] = set()
        self._due = time.monotonic() + options.sync_interval

    def prepare(self, expected: Iterable[str] = (), *, again: bool = False) -> Mapping[str, Refusal]:
        """Prepare the topics at the target. Return those that are not mirrored. Raises KafkaError and MirrorError.

        expected: topics without which this is an UnansweredError. again: also topics whose partitions and configuration
        are as before.
        """
        topics = self._source.topics()
        if missing := sorted(set(expected) - topics.keys()):
            raise UnansweredError(f"a broker of the source does not know {some_names(missing)} yet")
        refused = self._admission.refused(topics.keys())
        self._report(refused)
        admitted = {name: topic for name, topic in topics.items() if name not in refused}
        self._target.prepare(admitted, again=again)
        self._statistics.topics.update((name, self._options.names.target(name)) for name in admitted)
        return refused

    def is_due(self, now: float) -> bool:
        """Return whether `refresh` is to be called. now: as `time.monotonic`."""
        return now >= self._due

    def refresh(self) -> Mapping[str, Refusal]:
        """Sync the topics, and return those that close a loop by now. A failure is logged, and tried again."""
        self._due = time.monotonic() + self._options.sync_interval
        refused: Mapping[str, Refusal] = {}
        try:
            refused = self._admission.refresh()
            self._report(refused)
            if self._options.syncs_topics:
                self.prepare(again=True)
        except (kafka_errors.KafkaError, MirrorError) as error:
            _log.warning("topics could not be kept in sync, and this is tried again", error=str(error))
        return refused

    def _report(self, refused: Mapping[str, Refusal]) -> None:
        """Log each refused topic once."""
        for topic, refusal in refused.items():
            if topic in self._reported:
                continue
            self._reported.add(topic)
            self._statistics.topics.pop(topic, None)
            if refusal.is_left_out:
                self._statistics.left_out_topics[topic] = refusal.message
                _log.warning("a topic is left out", topic=topic, reason=refusal.message)
            else:
                _log.error("a topic is not mirrored", topic=topic, error=refusal.message)
