"""Run a restore: the mirror's engine, from the logs of a backup into a cluster, and then configurations and groups.

Records and the offset map are in the same transactions. So a restore that was killed continues where it was, and each
record is at the target once. A restore is known in the map by its backup, its generation and its end: another one does
not continue it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import kafka.errors as kafka_errors
import structlog

from kafkafmt.log.topic_configs import TopicConfig
from kafkafmt.mirror.clusters import MirrorCluster
from kafkafmt.mirror.group_name import derived_group
from kafkafmt.mirror.offset_map import OffsetMap
from kafkafmt.mirror.offset_stores import FileOffsetMapStore, TopicOffsetMapStore
from kafkafmt.mirror.opening import open_mirror, open_offset_store
from kafkafmt.mirror.options import OFFSET_MAP_PREFIX, MirrorOptions
from kafkafmt.mirror.targets.topic_messages import warn_of_unknown
from kafkafmt.net import Producer
from kafkafmt.restore.errors import RestoreError
from kafkafmt.restore.groups import (
    Groups,
    RestoredGroups,
    offsets_by_partition,
    restore_groups,
    selected_groups,
)
from kafkafmt.restore.locations import RestoredFrom, find_source
from kafkafmt.restore.options import RestoreOptions, renamed
from kafkafmt.restore.source import RestoreSource
from kafkafmt.restore.topics import RETENTION, TargetOfRestore, TopicPlan

if TYPE_CHECKING:
    from kafkafmt.mirror.loop import Mirror, Report
    from kafkafmt.mirror.statistics import Statistics
    from kafkafmt.types import TopicPartition

_log = structlog.get_logger()

# The time that the target has to answer whether it takes transactions.
_INIT_SECONDS = 60.0


class Restore:
    """A restore that is planned, and may be run.

    topics: what is restored, and how. groups: the offsets that groups had. origin: where they are read.
    """

    def __init__(
        self,
        options: RestoreOptions,
        origin: RestoredFrom,
        cluster: MirrorCluster,
        source: RestoreSource,
        mirror_options: MirrorOptions,
        groups: Groups,
    ) -> None:
        self._options, self.origin, self._cluster = options, origin, cluster
        self._source, self._mirror_options = source, mirror_options
        self._mirror: Mirror | None = None
        self._is_ending = False
        self.groups = groups
        self.restored_groups = RestoredGroups()
        self.kept_retention: dict[str, dict[str, str | None]] = {}
        self.incomplete_topics: list[str] = []
        self.statistics: Statistics | None = None
        self._names = mirror_options.names
        self._target = TargetOfRestore(cluster, self._names, options.replication_factor)
        self.topics = self._plan()

    def _plan(self) -> list[TopicPlan]:
        topics = {}
        found = self._source.topics()
        for name, topic in found.items():
            configs = self._options.topic_settings.applied(self._names.target(name), topic.config.configs)
            topics[name] = TopicConfig(topic.config.partitions, configs)
        warn_of_unknown(name for name, topic in found.items() if not topic.is_known)
        return self._target.plan(topics)

    def bounds(self) -> dict[TopicPartition, tuple[int, int]]:
        """Return the first offset of each partition that is restored, and the offset after its last one."""
        return self._source.bounds(self._source.partitions())

    def check(self) -> None:
        """Check before anything is changed.

        Raises RestoreError if topics at the target have records that this restore has not written, or if brokers refuse
        a property that the user gave.
        """
        self._ensure_settings_accepted()
        place = self._mirror_options.offset_map
        begun: TopicOffsetMapStore | FileOffsetMapStore
        if place.startswith(OFFSET_MAP_PREFIX):
            # Ranges of transactions that are open or were aborted show, too, that a restore began a topic: one that
            # was killed before it could commit.
            begun = TopicOffsetMapStore(
                place.removeprefix(OFFSET_MAP_PREFIX), self.origin.name, self._cluster, "read_uncommitted"
            )
        elif not Path(place).exists():
            self._target.ensure_restorable(self.topics, None)  # a dry run makes no file
            return
        else:
            begun = FileOffsetMapStore(Path(place), self.origin.name)
        try:
            self._target.ensure_restorable(self.topics, begun)
        finally:
            begun.close()

    def _ensure_settings_accepted(self) -> None:
        for plan in self.topics:
            given = self._options.topic_settings.applied(plan.target, {})
            for name in sorted(given.keys() & plan.refused.keys()):
                raise RestoreError(
                    f"--topic-config {name}={given[name]}: topic {plan.target} at {self._cluster.address} cannot "
                    f"have it: {plan.refused[name]}"
                )

    def run(self, report: Report) -> None:
        """Restore until the end, or until `end` is called. Then set configurations, and commit the offsets of groups.

        report: called with the statistics every `progress_interval` seconds.

        Raises RestoreError, MirrorError or OSError if the restore cannot continue. Another run continues it.
        """
        self.check()
        if self._options.is_exactly_once:
            self._ensure_transactions()
        self._ensure_rights()
        self._target.begin(self.topics)
        with open_mirror(self._mirror_options, report, open_source=lambda *_: self._source) as mirror:
            self.statistics = mirror.statistics
            self._mirror = mirror
            if self._is_ending:
                mirror.end()
            mirror.run()
        stopped = {*self.statistics.failures, *(one.topic_partition for one in self.statistics.unreached)}
        self.incomplete_topics = sorted({one.topic for one in stopped})
        self._finish()

    def _ensure_transactions(self) -> None:
        """Raise RestoreError if the target takes no transactions: before topics are created."""
        prefix = derived_group(self.origin.name, self._cluster.id)
        settings = {"acks": "all", "enable_idempotence": True, "transactional_id": f"{prefix}-check"}
        producer = Producer(**{**self._cluster.config_of(Producer), **settings})
        try:
            producer.init_transactions(_INIT_SECONDS)
        except kafka_errors.TransactionalIdAuthorizationFailedError as error:
            raise RestoreError(
                f"a restore needs transactions at the target, and the right to write with transactional ids that "
                f"begin with {prefix}, or --no-transactions: {error}"
            ) from None
        finally:
            producer.close(0)

    def _ensure_rights(self) -> None:
        """Raise MirrorError for a missing right, before topics are created."""
        self._cluster.ensure_alterable(plan.target for plan in self.topics)
        place = self._mirror_options.offset_map
        if place.startswith(OFFSET_MAP_PREFIX):
            topic = place.removeprefix(OFFSET_MAP_PREFIX)
            with closing(TopicOffsetMapStore(topic, self.origin.name, self._cluster)) as store:
                store.create()

    def end(self) -> None:
        """Make `run` complete the batches under way, and return."""
        self._is_ending = True
        if self._mirror is not None:
            self._mirror.end()

    def _finish(self) -> None:
        complete = [plan for plan in self.topics if plan.topic not in self.incomplete_topics]
        try:
            self._restore_groups(complete)
        finally:
            self._set_configs(complete)

    def _restore_groups(self, complete: Iterable[TopicPlan]) -> None:
        partitions = {plan.topic: plan.partitions for plan in complete}
        store = open_offset_store(self._mirror_options, self.origin.name, self._cluster)
        offsets = OffsetMap(store, self._names)
        try:
            groups = selected_groups(self.groups, self._options.groups, partitions)
            self.restored_groups = restore_groups(groups, partitions, offsets, self._cluster, self._names)
        finally:
            offsets.close()

    def _set_configs(self, complete: Iterable[TopicPlan]) -> None:
        finished = {}
        for plan in complete:
            is_set = self._options.topic_settings.applied(plan.target, {})
            retention = RETENTION if self._options.sets_retention else is_set
            finished[plan.topic], kept = self._target.finish(plan, retention=retention)
            if kept:
                self.kept_retention[plan.target] = kept
        self.topics = [finished.get(plan.topic, plan) for plan in self.topics]

    def plan_as_dict(self) -> dict[str, Any]:
        """Return what a run would do, for JSON."""
        bounds = self.bounds()
        partitions = {str(one): {"start": start, "end": end} for one, (start, end) in sorted(bounds.items())}
        return {
            "source": str(self.origin.path),
            "generation": self.origin.generation,
            "topics": [plan.as_dict() for plan in self.topics],
            "partitions": partitions,
            "groups": sorted(self.groups),
        }


@contextmanager
def open_restore(options: RestoreOptions) -> Iterator[Restore]:
    """Plan a restore, and close it at the end of the block. Nothing is changed before `run`.

    Raises RestoreError, MirrorError, BackupError and OSError.
    """
    origin = find_source(options)
    topics = {
        one.topic for offsets in origin.groups.values() for one in offsets if options.matches(one.topic)
    }
    groups = selected_groups(origin.groups, options.groups, topics)
    mirror_options = MirrorOptions(
        origin.path,
        options.target,
        follows=False,
        topics=options.topics,
        times=options.times,
        on_corrupt=options.on_corrupt,
        target_config=options.target_config,
        is_exactly_once=options.is_exactly_once,
        offset_map=options.offset_map,
        exact_offsets=offsets_by_partition(groups),
        commit_interval=options.commit_interval,
        progress_interval=options.progress_interval,
        memory_bytes=options.memory_bytes,
        shutdown_timeout=options.shutdown_timeout,
    )
    source = RestoreSource(
        origin.path,
        mirror_options,
        name=origin.name,
        matches=options.matches,
    )
    with ExitStack() as stack:
        stack.callback(source.close)
        names = renamed(source.selected_topics(), options.renames)
        unused = options.topic_settings.without_effect(
            {names.target(one) for one in source.selected_topics()}
        )
        if unused:
            raise RestoreError(unused[0])
        mirror_options = replace(mirror_options, topic_names=names)
        groups = selected_groups(groups, options.groups, source.selected_topics())
        missing = [] if options.groups is None else options.groups.missing(groups)
        if missing:
            raise RestoreError(f"--groups: no group {', '.join(missing)} with offsets in the restored topics")
        cluster = MirrorCluster(options.target, options.target_config)
        stack.callback(cluster.close)
        yield Restore(options, origin, cluster, source, mirror_options, groups)
