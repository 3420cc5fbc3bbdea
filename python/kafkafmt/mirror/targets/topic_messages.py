"""Messages of both targets about topics that were created again, or whose configuration is not known."""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

import structlog

_log = structlog.get_logger()


def recreated_message(earlier: object, found: UUID) -> str:
    """Return the message of a partition that was stopped because its offsets would follow those of another topic."""
    return (
        f"the topic was deleted and created again at the source: expected topic id {earlier}, which was mirrored "
        f"here, found {found}; --restart-recreated mirrors the new one from its start"
    )


def warn_of_unknown(topics: Iterable[str]) -> None:
    """Warn once of all topics that were created without a known configuration."""
    if names := sorted(topics):
        _log.warning(
            "the configuration of topics is not known: they are created so that nothing is deleted or compacted, "
            "--topic-config changes that",
            topics=names,
        )
