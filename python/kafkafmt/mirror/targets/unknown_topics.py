"""The warning about topics that are created though nothing tells their configuration."""

from __future__ import annotations

from collections.abc import Iterable

import structlog

_log = structlog.get_logger()


def warn_of_unknown(topics: Iterable[str]) -> None:
    """Warn once of all topics that were created though nothing tells their configuration."""
    if names := sorted(topics):
        _log.warning(
            "the configuration of topics is not known: they are created so that nothing is deleted or compacted, "
            "--topic-config changes that",
            topics=names,
        )
