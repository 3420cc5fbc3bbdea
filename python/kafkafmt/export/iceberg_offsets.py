"""The next offsets in an Iceberg table: in the summaries of snapshots, and in the properties of the table."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

from kafkafmt.export.errors import ExportError
from kafkafmt.export.iceberg_names import shown_name
from kafkafmt.types import TopicPartition

if TYPE_CHECKING:
    from pyiceberg.table import Table

OFFSETS = "kafkafmt.offsets"
SEQUENCE_NUMBER = "kafkafmt.sequence-number"


def encoded_offsets(offsets: Mapping[TopicPartition, int]) -> str:
    """Return offsets as JSON.

    >>> encoded_offsets({TopicPartition("orders", 0): 1200})
    '{"orders":{"0":1200}}'
    """
    topics: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in sorted(offsets.items()):
        topics.setdefault(topic, {})[str(partition)] = offset
    return json.dumps(topics, separators=(",", ":"))


def offsets_of(table: Table) -> dict[TopicPartition, int]:
    """Return the offsets of the newest snapshot that has them; those of the properties, if it has expired.

    Raises ExportError if neither tells them, because the table was rolled back and older snapshots have expired.
    """
    snapshot = table.current_snapshot()
    while snapshot is not None:
        found = snapshot.summary.get(OFFSETS) if snapshot.summary is not None else None
        if found is not None:
            return _decoded_offsets(found, table)
        # Expiry removes snapshots, and may remove the ids of parents.
        older = snapshot.parent_snapshot_id and table.snapshot_by_id(snapshot.parent_snapshot_id)
        if not older:
            return _expired_offsets(table, snapshot.sequence_number or 0)
        snapshot = older
    return {}


def _expired_offsets(table: Table, oldest: int) -> dict[TopicPartition, int]:
    """Return the offsets of a table whose snapshots have none. oldest: the sequence number of the first one.

    The properties are of the last commit of all. They are the state only if that is an ancestor that has expired.
    """
    last = _sequence_number(table)
    # Sequence numbers begin with 1: no snapshot before this one has expired.
    if not last or oldest <= 1:
        return {}
    found = table.properties.get(OFFSETS)
    if last >= oldest or found is None:
        raise ExportError(
            f"{shown_name(table.name())}: expected the offsets of the current snapshot, found that they have expired "
            "with older snapshots: make a snapshot current that has them, or set the properties "
            f'{OFFSETS} to the offsets to continue with, as {{"orders":{{"0":1200}}}}, and {SEQUENCE_NUMBER} to 1'
        )
    return _decoded_offsets(found, table)


def _sequence_number(table: Table) -> int:
    text = table.properties.get(SEQUENCE_NUMBER, "0")
    try:
        return int(text)
    except ValueError:
        name = shown_name(table.name())
        raise ExportError(f"{name}: {SEQUENCE_NUMBER}: expected a number, found {text[:100]!r}") from None


def _decoded_offsets(text: str, table: Table) -> dict[TopicPartition, int]:
    try:
        return {
            TopicPartition(topic, int(partition)): int(offset)
            for topic, of_topic in json.loads(text).items()
            for partition, offset in of_topic.items()
        }
    except (ValueError, TypeError, AttributeError):
        name = shown_name(table.name())
        raise ExportError(f"{name}: {OFFSETS}: expected offsets as JSON, found {text[:100]!r}") from None
