"""Translate the committed offsets of a consumer group from the source of a mirror to its target."""

from __future__ import annotations

from contextlib import ExitStack
from typing import NamedTuple

from kafkafmt.mirror.addresses import ClusterAddress
from kafkafmt.mirror.clusters import MirrorCluster
from kafkafmt.mirror.coordinators import ask_coordinator
from kafkafmt.mirror.errors import MirrorError
from kafkafmt.mirror.offset_map import OffsetMap
from kafkafmt.mirror.opening import open_offset_store
from kafkafmt.mirror.options import MirrorOptions
from kafkafmt.types import TopicPartition


class GroupOffset(NamedTuple):
    """A group's committed offset at the source, and where it continues at the target.

    target_topic: the name of the topic there. target_offset: None if the offset map has no entry for the partition.
    """

    topic_partition: TopicPartition
    source_offset: int
    target_topic: str
    target_offset: int | None


def look_up_group(options: MirrorOptions, group: str, *, commit: bool) -> list[GroupOffset]:
    """Return the group's offsets in each partition that is mirrored.

    commit: commit the translated offsets for the group at the target. A target folder has the source's offsets.

    Raises MirrorError if the source is no cluster, the group has committed no offsets of the topics, or a commit fails.
    """
    if not isinstance(options.source, ClusterAddress):
        raise MirrorError(f"{options.source}: expected a cluster, where the group has committed its offsets")
    if commit and not isinstance(options.target, ClusterAddress):
        raise MirrorError(f"{options.target}: expected a cluster to commit offsets at")
    with ExitStack() as stack:
        source = MirrorCluster(options.source, options.source_config)
        stack.callback(source.close)
        committed = {
            one: offset
            for one, offset in sorted(ask_coordinator(lambda: source.group_offsets(group)).items())
            if options.source.matches(one.topic)
        }
        if not committed:
            raise MirrorError(f"{options.source}: group {group} has committed no offsets of these topics")
        if not isinstance(options.target, ClusterAddress):
            return [
                GroupOffset(one, offset, options.names.target(one.topic), offset)
                for one, offset in committed.items()
            ]
        target = MirrorCluster(options.target, options.target_config)
        stack.callback(target.close)
        store = open_offset_store(options, source.id, target)
        stack.callback(store.close)
        offsets = OffsetMap(store, options.names)
        found = [
            GroupOffset(one, offset, options.names.target(one.topic), offsets.partition(one).look_up(offset))
            for one, offset in committed.items()
        ]
        if commit:
            known = {
                options.names.target_partition(one.topic_partition): one.target_offset
                for one in found
                if one.target_offset is not None
            }
            ask_coordinator(lambda: target.commit_group_offsets(group, known))
        return found
