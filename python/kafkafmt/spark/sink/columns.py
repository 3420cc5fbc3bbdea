"""The columns of a DataFrame to write: check them, and sort the rows of an Arrow batch by partition."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kafkafmt._util.names import known_name
from kafkafmt.columns.read import COLUMNS
from kafkafmt.scanning.batch_rows import BATCH_TYPES
from kafkafmt.spark.sink.options import is_topic
from kafkafmt.types import TimestampType, TopicPartition

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from pyspark.sql.types import StructType

    from kafkafmt.spark.sink.options import WriteOptions

_MICROSECONDS = 1000
_NO_TIMESTAMP = -1
_MAX_PARTITION = 2**31 - 1

_INTEGERS = ("int", "bigint", "smallint", "tinyint")
_BYTES = ("binary", "string", "void")
_HEADERS = ("array<struct<key:string,value:binary>>", "array<struct<key:string,value:string>>", "void")
# The types that a column may have, in Spark's words. Columns without an entry are accepted and ignored.
_TYPES = {
    "records": {
        "key": _BYTES,
        "value": _BYTES,
        "topic": ("string",),
        "partition": _INTEGERS,
        "offset": _INTEGERS,
        "timestamp": ("timestamp",),
        "timestampType": (*_INTEGERS, "void"),
        "headers": _HEADERS,
    },
    "batches": {"topic": ("string",), "partition": _INTEGERS, "batch": ("binary",)},
}
_KNOWN = {"records": COLUMNS, "batches": tuple(BATCH_TYPES)}
_CONTENT = {"records": "value", "batches": "batch"}


@dataclass(frozen=True)
class SortedRows:
    """Rows sorted by partition. `content` has the columns to write, `ranges` the rows of each partition in it."""

    content: pa.RecordBatch
    ranges: list[tuple[TopicPartition, int, int]]


@dataclass(frozen=True)
class InputColumns:
    """The columns of the DataFrame.

    numbers: the position of each column by its name. topic, partition: of all rows, or None. keeps_offsets: whether the
    offsets of the data are written, else the commit assigns them.
    """

    numbers: dict[str, int]
    topic: str | None
    partition: int | None
    keeps_offsets: bool

    @classmethod
    def of(cls, options: WriteOptions, schema: StructType) -> InputColumns:
        """Return the columns for a log directory.

        Unless the option `unit` is given, rows are batches if there is a column `batch` and no column `value`. Raises
        ValueError for a column that is unknown, of a wrong type, repeated, or missing.
        """
        names = {name.lower() for name in schema.names}
        unit = options.unit or ("batches" if "batch" in names and "value" not in names else "records")
        options.ensure_fits(unit)
        numbers = _numbers(unit, schema, options.topic, options.partition)
        return cls(numbers, options.topic, options.partition, _keeps_offsets(options, unit, numbers))

    @classmethod
    def of_batches(cls, schema: StructType, topic: str | None, partition: int | None) -> InputColumns:
        """Return the columns of batches for brokers, which assign the offsets. Raises the errors of `of`."""
        return cls(_numbers("batches", schema, topic, partition), topic, partition, keeps_offsets=False)

    def sorted(self, rows: pa.RecordBatch) -> SortedRows:
        """Return the rows sorted by partition. Rows of a partition keep their order.

        Raises ValueError for a row without topic or partition, or with an invalid one.
        """
        content = self._content(rows)
        topics, codes = self._codes(rows)
        for topic in topics:
            if not is_topic(topic):
                expected = "up to 249 letters, digits, '.', '_' and '-'"
                raise ValueError(f"column topic: expected {expected}, found {topic!r}")
        order = np.argsort(codes, kind="stable")
        codes = codes[order]
        cuts = [0, *(np.flatnonzero(np.diff(codes)) + 1).tolist(), len(codes)]
        if (np.diff(order) < 0).any():
            content = content.take(pa.array(order))
        firsts = codes[cuts[:-1]].tolist()
        partitions = [TopicPartition(topics[code >> 32], code & 0xFFFFFFFF) for code in firsts]
        return SortedRows(
            content, [(where, *cut) for where, cut in zip(partitions, pairwise(cuts), strict=True)]
        )

    def _codes(self, rows: pa.RecordBatch) -> tuple[list[str], NDArray[np.int64]]:
        """Return the topics, and for each row a number: the index of its topic << 32 | its partition."""
        topics, codes = [self.topic or ""], np.zeros(len(rows), np.int64)
        if self.topic is None:
            encoded = self._whole(rows, "topic").dictionary_encode()
            topics, codes = encoded.dictionary.to_pylist(), encoded.indices.to_numpy().astype(np.int64)
        if self.partition is not None:
            return topics, (codes << 32) | self.partition
        partitions = self._whole(rows, "partition").cast(pa.int64()).to_numpy()
        if not 0 <= partitions.min() <= partitions.max() <= _MAX_PARTITION:
            wrong = partitions.min() if partitions.min() < 0 else partitions.max()
            raise ValueError(f"column partition: expected 0 to {_MAX_PARTITION}, found {wrong}")
        return topics, (codes << 32) | partitions

    def _whole(self, rows: pa.RecordBatch, name: str) -> pa.Array:
        column = rows.column(self.numbers[name])
        if column.null_count:
            raise ValueError(f"column {name}: expected a value in each row, found {column.null_count} nulls")
        return column

    def _content(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the columns to write: `batch`; or value and those of key, headers, timestamp, timestampType and
        offset that exist.

        Timestamps are in milliseconds, -1 for null. A timestampType is CREATE_TIME or LOG_APPEND_TIME. Null and
        NO_TIMESTAMP become CREATE_TIME: such rows have no timestamp.
        """
        if "batch" in self.numbers:
            return pa.record_batch({"batch": self._whole(rows, "batch")})
        names = [name for name in ("key", "value", "headers") if name in self.numbers]
        columns: dict[str, pa.Array] = {name: rows.column(self.numbers[name]) for name in names}
        if "timestamp" in self.numbers:
            columns["timestamp"] = _milliseconds(rows.column(self.numbers["timestamp"]))
        if "timestampType" in self.numbers:
            columns["timestampType"] = _timestamp_types(rows.column(self.numbers["timestampType"]))
        if self.keeps_offsets:
            columns["offset"] = self._whole(rows, "offset").cast(pa.int64())
        return pa.record_batch(columns)


def _numbers(unit: str, schema: StructType, topic: str | None, partition: int | None) -> dict[str, int]:
    """Return the position of each column by its name. topic, partition: of all rows, if given as options."""
    numbers: dict[str, int] = {}
    types = _TYPES[unit]
    for number, given in enumerate(schema.fields):
        name = known_name("column", given.name, _KNOWN[unit])
        found = given.dataType.simpleString()
        if name in numbers:
            raise ValueError(f"column {given.name}: found twice")
        if name in types and found not in types[name]:
            raise ValueError(f"column {given.name}: expected {' or '.join(types[name])}, found {found}")
        numbers[name] = number
    if _CONTENT[unit] not in numbers:
        raise ValueError(f"no column {_CONTENT[unit]}: found {', '.join(schema.names) or 'none'}")
    for name, of_all in (("topic", topic), ("partition", partition)):
        if name not in numbers and of_all is None:
            raise ValueError(f"no {name}: expected a column {name}, or the option {name} for all rows")
    return numbers


def _keeps_offsets(options: WriteOptions, unit: str, numbers: dict[str, int]) -> bool:
    has_offsets = unit == "batches" or "offset" in numbers
    if options.offsets == "keep" and not has_offsets:
        raise ValueError("option offsets: keep needs a column offset")
    keeps = has_offsets if options.offsets is None else options.offsets == "keep"
    if not keeps and unit == "records" and options.magic == 0 and options.codec:
        raise ValueError(
            "option offsets: dense needs magic 1 or 2, or no codec: compressed batches of format v0 hold offsets "
            "that are not known before the commit"
        )
    return keeps


def _milliseconds(timestamps: pa.Array) -> pa.Array:
    microseconds = pc.fill_null(timestamps.cast(pa.int64()), _NO_TIMESTAMP * _MICROSECONDS)
    return pa.array(microseconds.to_numpy() // _MICROSECONDS)


def _timestamp_types(types: pa.Array) -> pa.Array:
    numbers = pc.fill_null(types.cast(pa.int64()), TimestampType.CREATE_TIME).to_numpy()
    known = np.isin(numbers, list(TimestampType))
    if not known.all():
        expected = ", ".join(f"{kind.value} ({kind.name})" for kind in TimestampType)
        raise ValueError(f"column timestampType: expected {expected}, found {numbers[~known][0]}")
    return pa.array(
        np.where(numbers == TimestampType.LOG_APPEND_TIME, numbers, int(TimestampType.CREATE_TIME))
    )
