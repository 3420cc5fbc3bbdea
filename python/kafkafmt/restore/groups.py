"""Translate the committed offsets of groups to the offsets that their records got, and commit them at the target."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from kafkafmt.mirror.clusters import ActiveGroupError, MirrorCluster
from kafkafmt.mirror.coordinators import ask_coordinator
from kafkafmt.types import TopicPartition

if TYPE_CHECKING:
    from kafkafmt.mirror.group_selection import GroupSelection
    from kafkafmt.mirror.offset_map import OffsetMap
    from kafkafmt.mirror.topic_names import TopicNames
    from kafkafmt.storage.backups.manifest import GroupOffset

Groups = Mapping[str, tuple["GroupOffset", ...]]


@dataclass
class RestoredGroups:
    """What became of groups.

    committed: how many partitions of each group got an offset. ahead: how many partitions had an offset at the target
    that is higher, and stays. without_partition: how many offsets are of partitions that the restored topics lack.
    refused: groups with members at the target.
    """

    committed: dict[str, int] = field(default_factory=dict)
    ahead: dict[str, int] = field(default_factory=dict)
    without_partition: dict[str, int] = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, object]:
        """Return the fields for JSON."""
        return {
            "committed": self.committed,
            "ahead": self.ahead,
            "without_partition": self.without_partition,
            "refused": self.refused,
        }


def selected_groups(groups: Groups, selection: GroupSelection | None, topics: Collection[str]) -> Groups:
    """Return the groups that are selected, with their offsets in these topics."""
    if selection is None:
        return {}
    found = {
        group: tuple(one for one in offsets if one.topic in topics)
        for group, offsets in sorted(groups.items())
        if selection.matches(group)
    }
    return {group: offsets for group, offsets in found.items() if offsets}


def offsets_by_partition(groups: Groups) -> dict[TopicPartition, list[int]]:
    """Return the offsets that any group has committed, by partition."""
    found: defaultdict[TopicPartition, set[int]] = defaultdict(set)
    for offsets in groups.values():
        for one in offsets:
            found[TopicPartition(one.topic, one.partition)].add(one.offset)
    return {partition: sorted(offsets) for partition, offsets in found.items()}


def restore_groups(
    groups: Groups,
    partitions: Mapping[str, int],
    offsets: OffsetMap,
    target: MirrorCluster,
    names: TopicNames,
) -> RestoredGroups:
    """Commit the offsets of groups. An offset at the target that is higher stays: a consumer reads there already.

    partitions: how many partitions each restored topic has. Brokers refuse offsets of others.

    Raises KafkaError and MirrorError.
    """
    result = RestoredGroups()
    for group, stored in groups.items():
        committed = [one for one in stored if one.partition < partitions[one.topic]]
        if len(committed) < len(stored):
            result.without_partition[group] = len(stored) - len(committed)
        if not committed:
            continue
        wanted: dict[TopicPartition, int] = {}
        metadata: dict[TopicPartition, str] = {}
        for one in committed:
            source = TopicPartition(one.topic, one.partition)
            place = names.target_partition(source)
            wanted[place] = offsets.partition(source).look_up(one.offset) or 0  # 0: it has no records
            metadata[place] = one.metadata
        there = ask_coordinator(partial(target.group_offsets, group))
        ahead = {one for one, offset in wanted.items() if there.get(one, -1) > offset}
        if ahead:
            result.ahead[group] = len(ahead)
        new = {one: offset for one, offset in wanted.items() if one not in ahead and there.get(one) != offset}
        try:
            if new:
                ask_coordinator(partial(target.commit_group_offsets, group, new, metadata))
        except ActiveGroupError:
            result.refused.append(group)
            continue
        result.committed[group] = len(wanted) - len(ahead)
    return result
