"""Read the committed offsets of consumer groups, for a generation of a backup."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kafkafmt.mirror.coordinators import ask_coordinator
from kafkafmt.mirror.refusals import RefusedError
from kafkafmt.storage.backups.errors import BackupError
from kafkafmt.storage.backups.manifest import GroupOffset

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kafkafmt.mirror.clusters import MirrorCluster
    from kafkafmt.mirror.group_selection import GroupSelection


@dataclass(frozen=True)
class GroupOffsets:
    """The committed offsets by group, as of `at_ms`."""

    at_ms: int
    by_group: Mapping[str, tuple[GroupOffset, ...]]


def read_groups(
    cluster: MirrorCluster, selection: GroupSelection, matches: Callable[[str], bool]
) -> GroupOffsets:
    """Read the offsets of the selected groups in topics that match. Raises KafkaError, and BackupError for a right."""
    at_ms = time.time_ns() // 1_000_000
    found = {}
    for group in filter(selection.matches, ask_coordinator(cluster.consumer_groups)):
        try:
            committed = ask_coordinator(lambda group=group: cluster.committed_offsets(group))  # type: ignore[misc]
        except RefusedError as error:
            raise BackupError(f"{error}, or --groups that selects others") from None
        offsets = tuple(
            GroupOffset(
                one.topic,
                one.partition,
                at.offset,
                -1 if at.leader_epoch is None else at.leader_epoch,
                at.metadata or "",
            )
            for one, at in sorted(committed.items())
            if matches(one.topic)
        )
        if offsets:
            found[group] = offsets
    return GroupOffsets(at_ms, found)
