"""The rows of a table, as its store has them."""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, NamedTuple

from kafkafmt.types import TopicPartition

if TYPE_CHECKING:
    from kafkafmt.jobs.table.state import TableState
    from kafkafmt.jobs.table.stores import KeyValueStore

# The prefix of a value in the store: offset, timestamp and timestamp type of its record.
VALUE_PREFIX = struct.Struct(">qqb")
# The bytes before the record's key: the numbers of topic and partition (`TableState.key_prefix`).
KEY_PREFIX_BYTES = 8


class TableRow(NamedTuple):
    """The latest value of a key. timestamp: in milliseconds. timestamp and timestamp_type are -1 if there is none."""

    topic_partition: TopicPartition
    key: bytes
    value: bytes
    timestamp: int
    offset: int
    timestamp_type: int


def stored_rows(
    store: KeyValueStore, state: TableState, topic_partitions: Collection[TopicPartition]
) -> Iterator[TableRow]:
    """Iterate over the rows of these partitions, in the order of their numbers in the state, sorted by key.

    A state may have rows of other partitions: their logs are gone, or other members of a group have them.
    """
    prefixes = {state.key_prefix(one): one for one in topic_partitions}
    items = store.prefix(*prefixes) if len(prefixes) == 1 else store.range()
    for key, value in items:
        topic_partition = prefixes.get(key[:KEY_PREFIX_BYTES])
        if topic_partition is not None:
            offset, timestamp, timestamp_type = VALUE_PREFIX.unpack_from(value)
            own_key, own_value = key[KEY_PREFIX_BYTES:], value[VALUE_PREFIX.size :]
            yield TableRow(topic_partition, own_key, own_value, timestamp, offset, timestamp_type)
