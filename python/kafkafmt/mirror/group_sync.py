"""Keep the committed offsets of consumer groups at the target in step with the source's (`--sync-groups`).

The offset map translates a group's offsets. They are committed at the target if the group has no members there, and
only forward: a consumer that reads at the target is never put back. What is synced is not kept anywhere, so a restart
continues with the next comparison. MirrorMaker 2 does the same with `sync.group.offsets.enabled`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import kafka.errors as kafka_errors
import structlog

from kafkafmt._util.names import some_names
from kafkafmt.mirror.clusters import ActiveGroupError
from kafkafmt.mirror.coordinators import ask_coordinator
from kafkafmt.mirror.errors import MirrorError

if TYPE_CHECKING:
    from kafkafmt.mirror.addresses import ClusterAddress
    from kafkafmt.mirror.clusters import MirrorCluster
    from kafkafmt.mirror.group_selection import GroupSelection
    from kafkafmt.mirror.offset_map import OffsetMap
    from kafkafmt.mirror.topic_names import TopicNames
    from kafkafmt.types import TopicPartition

_log = structlog.get_logger()


class GroupSync:
    """Syncs the groups when it is called.

    source, target: clusters for this object alone. address: selects the source's topics. own_group: the mirror's.
    """

    def __init__(
        self,
        source: MirrorCluster,
        target: MirrorCluster,
        offsets: OffsetMap,
        *,
        address: ClusterAddress,
        selection: GroupSelection,
        own_group: str | None,
        names: TopicNames,
    ) -> None:
        self._source, self._target, self._offsets = source, target, offsets
        self._address, self._selection, self._own_group = address, selection, own_group
        self._names = names
        self._loaded: set[TopicPartition] = set()
        self._failed: set[str] = set()  # groups whose last sync failed
        self._missing: list[str] = []  # groups that the last sync did not find

    def __call__(self) -> None:
        """Commit offsets of groups that have moved. Raises KafkaError if the source does not list its groups.

        Raises MirrorError if the sync of a group failed, or a group was not found that the selection names.

        If the sync of a group fails, the other groups are synced nevertheless. The failure is logged as a warning
        once, until the group is synced again.
        """
        self._offsets.forget(self._loaded)  # the mirror has saved more since
        self._loaded.clear()
        committed = 0
        failed: set[str] = set()
        groups = ask_coordinator(self._source.consumer_groups)
        missing = self._selection.missing(groups)
        if missing != self._missing:
            self._missing = missing
            for one in missing:
                _log.warning(
                    "a group was not found at the source: it does not exist yet, or this user lacks the right Describe "
                    "on it",
                    group=one,
                )
        for group in groups:
            if group == self._own_group or not self._selection.matches(group):
                continue
            try:
                committed += self._sync(group)
            except (kafka_errors.KafkaError, MirrorError) as error:
                log = _log.debug if group in self._failed else _log.warning
                log("the sync of a group failed, and is tried again", group=group, error=str(error))
                failed.add(group)
        self._failed = failed
        if committed:
            _log.info("offsets of groups were committed at the target", groups=committed)
        if unsynced := sorted({*failed, *missing}):
            raise MirrorError(f"groups were not synced: {some_names(unsynced)}")

    def _sync(self, group: str) -> bool:
        """Commit the offsets of one group. Return whether there were any to commit."""
        wanted = self._translated(ask_coordinator(lambda: self._source.group_offsets(group)))
        if not wanted:
            return False
        there = ask_coordinator(lambda: self._target.group_offsets(group))
        ahead = {one: offset for one, offset in wanted.items() if offset > there.get(one, -1)}
        if not ahead:
            return False
        try:
            ask_coordinator(lambda: self._target.commit_group_offsets(group, ahead))
        except ActiveGroupError:
            _log.debug("a group has members at the target, and its offsets stay", group=group)
            return False
        return True

    def _translated(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Return the offsets at the target, by the target's partition. Partitions that are not mirrored have none."""
        found = {}
        for topic_partition, offset in offsets.items():
            if not self._address.matches(topic_partition.topic):
                continue
            self._loaded.add(topic_partition)
            there = self._offsets.partition(topic_partition).look_up(offset)
            if there is not None:
                found[self._names.target_partition(topic_partition)] = there
        return found
