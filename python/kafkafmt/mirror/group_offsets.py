"""The positions of a consumer group, looked up on the other side of a mirror."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from kafkafmt.mirror.clusters import Cluster
from kafkafmt.mirror.errors import MirrorError
from kafkafmt.mirror.opening import open_offset_map
from kafkafmt.mirror.options import MirrorOptions
from kafkafmt.types import TopicPartition


class GroupOffset(NamedTuple):
    """Where a group is at the source, and where it goes on at the target; None where the map knows nothing."""

    topic_partition: TopicPartition
    source_offset: int
    target_offset: int | None


def look_up_group(options: MirrorOptions, group: str, *, commit: bool) -> list[GroupOffset]:
    """The group's position in each partition that is mirrored; `commit`: committed for it at the target.

    A folder has the source's offsets. Raises MirrorError.
    """
    if isinstance(options.source, Path):
        raise MirrorError(f"{options.source}: expected a cluster, where the group has committed its offsets")
    if commit and isinstance(options.target, Path):
        raise MirrorError(f"{options.target}: expected a cluster to commit offsets at")
    with ExitStack() as stack:
        source = Cluster(options.source, options.source_config)
        stack.callback(source.close)
        committed = {
            one: offset
            for one, offset in sorted(source.group_offsets(group).items())
            if options.source.means(one.topic)
        }
        if not committed:
            raise MirrorError(f"{options.source}: group {group} has committed no offsets of such topics")
        if isinstance(options.target, Path):
            return [GroupOffset(one, offset, offset) for one, offset in committed.items()]
        target = Cluster(options.target, options.target_config)
        stack.callback(target.close)
        offsets = open_offset_map(options.offset_map, source.id, target)
        stack.callback(offsets.close)
        found = [
            GroupOffset(one, offset, offsets.partition(one).look_up(offset))
            for one, offset in committed.items()
        ]
        if commit:
            known = {one.topic_partition: one.target_offset for one in found if one.target_offset is not None}
            target.commit_group_offsets(group, known)
        return found
