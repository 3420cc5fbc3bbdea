"""Messages of targets about topics that were created again, or whose configuration or records are not known."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING
from uuid import UUID

import structlog

from kafkafmt._util.names import some_names

if TYPE_CHECKING:
    from kafkafmt.types import TopicPartition

_log = structlog.get_logger()


def recreated_message(earlier: object, found: UUID) -> str:
    """Return the message of a partition that was stopped because its offsets would follow those of another topic."""
    return (
        f"the topic was deleted and created again at the source: expected topic id {earlier}, which was mirrored "
        f"here, found {found}; --restart-recreated mirrors the new one from its start"
    )


def lagging_message(topic: str, expected: int, found: int) -> str:
    """Return the message about a topic that a broker of the target does not know as it is. found: partitions."""
    return (
        f"topic {topic}: a broker of the target does not know it yet, or not all of its partitions: expected "
        f"{expected} partitions, found {found}"
    )


def warn_of_unknown(topics: Iterable[str]) -> None:
    """Warn once of all topics that were created without a known configuration."""
    if names := sorted(topics):
        _log.warning(
            "the configuration of topics is not known: they are created so that nothing is deleted or compacted, "
            "--topic-config changes that",
            topics=names,
        )


def report_unknown_records(unknown: Mapping[TopicPartition, tuple[int, int]], *, appends: bool) -> None:
    """Log in one line all partitions with records at the target that the offset map does not know.

    unknown: first and end offset. appends: whether new records are appended to them.
    """
    if not unknown:
        return
    partitions = some_names(f"{one} offsets {first} to {end - 1}" for one, (first, end) in unknown.items())
    if appends:
        _log.warning(
            "the target has records that the offset map does not know: new records are appended, and may be there "
            "twice",
            partitions=partitions,
        )
        return
    _log.error(
        "partitions are not mirrored: the target has records that the offset map does not know; --append appends "
        "new records to them",
        partitions=partitions,
    )
