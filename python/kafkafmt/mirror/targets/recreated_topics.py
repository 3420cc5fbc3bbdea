"""What a target says of a topic that was deleted and created again at the source."""

from __future__ import annotations

from uuid import UUID


def recreated_message(earlier: object, found: UUID) -> str:
    """Return why the partition is not mirrored on: its offsets would follow those of another topic."""
    return (
        f"the topic was deleted and created again at the source: expected topic id {earlier}, which was mirrored "
        f"here, found {found}; --restart-recreated mirrors the new one from its start"
    )
