"""Convert batches to rows: the header fields, the file and position, and the bytes. Nothing is decompressed.

The columns are the fields of the shallow index, with names in Spark's style. Fields that a header does not contain are
null: baseOffset and count of a compressed v0/v1 wrapper, timestamps of -1, deleteHorizon if it is not set. Producer
fields keep Kafka's -1 for none. A row of damage has the damaged range, its offsets if known, and the error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa

from kafkafmt.columns.arrow import boolean_array, number_array, repeated_int, repeated_text, string_array
from kafkafmt.types import Codec, TopicPartition

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from _kafkafmt.batches.scan import BatchRun
    from kafkafmt.errors import KafkaFormatError

_TIMESTAMP = pa.timestamp("us", tz="UTC")
_MICROSECONDS = 1000
_CODEC_IDS = 8  # three bits of the attributes; ids above that of zstd are unassigned
_CODECS = [(Codec(i).name.lower() if i <= Codec.ZSTD else str(i)).encode() for i in range(_CODEC_IDS)]


@dataclass(frozen=True)
class BatchSource:
    """The file that contains the batches."""

    path: str
    topic_partition: TopicPartition | None


_Fill: TypeAlias = "Callable[[BatchRun, BatchSource], pa.Array]"


def _field(name: str, kind: pa.DataType) -> _Fill:
    def fill(run: BatchRun, source: BatchSource) -> pa.Array:
        return number_array(kind, run.index[name].astype(kind.to_pandas_dtype()))

    return fill


def _flag(name: str) -> _Fill:
    def fill(run: BatchRun, source: BatchSource) -> pa.Array:
        return boolean_array(run.index[name])

    return fill


def _known(name: str, kind: pa.DataType) -> _Fill:
    def fill(run: BatchRun, source: BatchSource) -> pa.Array:
        values = run.index[name].astype(kind.to_pandas_dtype())
        return number_array(kind, values, values >= 0)

    return fill


def _time(name: str) -> _Fill:
    def fill(run: BatchRun, source: BatchSource) -> pa.Array:
        rows = run.index
        is_horizon = rows["has_delete_horizon"] if name == "base_timestamp" else np.zeros(len(rows), np.bool_)
        return _timestamps(rows[name], is_horizon)

    return fill


def _delete_horizon(run: BatchRun, source: BatchSource) -> pa.Array:
    """Return the delete horizons. If one is set, the base timestamp field contains it (KIP-534)."""
    return _timestamps(run.index["base_timestamp"], ~run.index["has_delete_horizon"])


def _timestamps(milliseconds: NDArray[np.int64], missing: NDArray[np.bool_]) -> pa.Array:
    """Convert timestamps to microseconds. Null if missing, -1, or beyond the range of microseconds."""
    most = np.iinfo(np.int64).max // _MICROSECONDS
    unknown = missing | (milliseconds == -1) | (milliseconds > most) | (milliseconds < -most)
    return number_array(_TIMESTAMP, np.where(unknown, 0, milliseconds) * _MICROSECONDS, ~unknown)


def _codec(run: BatchRun, source: BatchSource) -> pa.Array:
    names = [_CODECS[number] for number in run.index["codec"].tolist()]
    offsets = np.zeros(len(names) + 1, np.int32)
    np.cumsum([len(name) for name in names], out=offsets[1:])
    return string_array(pa.string(), offsets, b"".join(names))


def _topic(run: BatchRun, source: BatchSource) -> pa.Array:
    where = source.topic_partition
    return repeated_text(None if where is None else where.topic, len(run))


def _partition(run: BatchRun, source: BatchSource) -> pa.Array:
    where = source.topic_partition
    return repeated_int(None if where is None else where.partition, len(run))


def _file(run: BatchRun, source: BatchSource) -> pa.Array:
    return repeated_text(source.path, len(run))


def _bytes(run: BatchRun, source: BatchSource) -> pa.Array:
    """Return the bytes of the batches. They are views of the run's buffer if the batches are adjacent in it."""
    rows = run.index
    ends = np.cumsum(rows["size"], dtype=np.int64)
    if ends[-1] > np.iinfo(np.int32).max:
        raise AssertionError("a run holds less")
    first = int(rows["position"][0])
    buffer = pa.py_buffer(run.buffer)
    offsets = np.zeros(len(rows) + 1, np.int32)
    offsets[1:] = ends
    if (rows["position"] - first == offsets[:-1]).all():
        data = buffer.slice(first - run.origin, int(ends[-1]))
    else:
        data = b"".join(run.batch(number) for number in range(len(rows)))
    return string_array(pa.binary(), offsets, data)


def _no_damage(run: BatchRun, source: BatchSource) -> pa.Array:
    return pa.nulls(len(run), pa.string())


_COLUMNS: dict[str, tuple[pa.DataType, _Fill]] = {
    "topic": (pa.string(), _topic),
    "partition": (pa.int32(), _partition),
    "baseOffset": (pa.int64(), _known("base_offset", pa.int64())),
    "lastOffset": (pa.int64(), _field("last_offset", pa.int64())),
    "count": (pa.int32(), _known("count", pa.int32())),
    "baseTimestamp": (_TIMESTAMP, _time("base_timestamp")),
    "maxTimestamp": (_TIMESTAMP, _time("max_timestamp")),
    "timestampType": (pa.int32(), _field("timestamp_type", pa.int32())),
    "deleteHorizon": (_TIMESTAMP, _delete_horizon),
    "magic": (pa.int32(), _field("magic", pa.int32())),
    "codec": (pa.string(), _codec),
    "attributes": (pa.int32(), _field("attributes", pa.int32())),
    "isTransactional": (pa.bool_(), _flag("is_transactional")),
    "isControl": (pa.bool_(), _flag("is_control")),
    "producerId": (pa.int64(), _field("producer_id", pa.int64())),
    "producerEpoch": (pa.int32(), _field("producer_epoch", pa.int32())),
    "baseSequence": (pa.int32(), _field("base_sequence", pa.int32())),
    "partitionLeaderEpoch": (pa.int32(), _field("partition_leader_epoch", pa.int32())),
    "crc": (pa.int64(), _field("crc", pa.int64())),
    "file": (pa.string(), _file),
    "position": (pa.int64(), _field("position", pa.int64())),
    "size": (pa.int64(), _field("size", pa.int64())),
    "batch": (pa.binary(), _bytes),
    "damage": (pa.string(), _no_damage),
}

# A column for damage that is kept.
DAMAGE_COLUMN = "damage"
BATCH_TYPES = {name: kind for name, (kind, _) in _COLUMNS.items()}


def batch_rows(run: BatchRun, source: BatchSource, columns: Sequence[str]) -> list[pa.Array]:
    """Return the given columns of a run that is not empty. The bytes may be views of its buffer."""
    return [_COLUMNS[name][1](run, source) for name in columns]


def damage_row(
    error: KafkaFormatError, end_position: int, source: BatchSource, columns: Sequence[str]
) -> list[pa.Array]:
    """Return one row for the damaged range, from the error's position to `end_position`, the next valid batch."""
    assert error.position is not None
    where = source.topic_partition
    known: dict[str, Any] = {
        "topic": where.topic if where is not None else None,
        "partition": where.partition if where is not None else None,
        "baseOffset": error.base_offset,
        "lastOffset": error.last_offset,
        "file": source.path,
        "position": error.position,
        "size": end_position - error.position,
        DAMAGE_COLUMN: error.message,
    }
    return [pa.array([known.get(name)], BATCH_TYPES[name]) for name in columns]
