"""The groups of a backup, which has their committed offsets in the manifest of a generation."""

from __future__ import annotations

from collections.abc import Iterable

from kafkafmt.log.internal_topics.groups import CommittedOffset, Group
from kafkafmt.log.internal_topics.offsets import ConsumerOffsets
from kafkafmt.storage import StoragePath
from kafkafmt.storage.backups import manifest_of


def backed_up_offsets(paths: Iterable[StoragePath]) -> ConsumerOffsets | None:
    """Return the groups of the backups that paths are in; None if no path is in a backup. Raises OSError."""
    manifests = [one for one in map(manifest_of, paths) if one is not None]
    if not manifests:
        return None
    offsets = {
        (group, one.topic, one.partition): CommittedOffset(
            group, one.topic, one.partition, one.offset, one.leader_epoch, one.metadata
        )
        for manifest in manifests
        for group, committed in manifest.groups.items()
        for one in committed
    }
    return ConsumerOffsets(
        {group: Group(group, "classic", "Empty", "") for group in sorted({key[0] for key in offsets})},
        tuple(one for _, one in sorted(offsets.items())),
        newest_timestamp=max(one.groups_at_ms for one in manifests),
    )
