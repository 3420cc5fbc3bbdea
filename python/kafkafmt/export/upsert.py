"""Mode upsert: a table has the latest row of each key of a topic. A record without a value removes the row of its key.

Tasks write all records of a run to files, with a column that marks those without a value. At the commit only the last
record of each key is merged with the table. The records of one partition are ordered by offset. If a key is in several
partitions of a topic, as after partitions were added, the record with the later timestamp is the last one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kafkafmt.export.errors import ExportError
from kafkafmt.export.schemas import DELETED, VALUE
from kafkafmt.export.writing import below
from kafkafmt.scanning.decoded import DecodedTask
from kafkafmt.storage import read_file

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kafkafmt.export.tables import DataFile
    from kafkafmt.export.upsert_columns import UpsertColumns
    from kafkafmt.scanning.tasks import ScanTask
    from kafkafmt.storage import StoragePath


def upsert_schema(schema: pa.Schema) -> pa.Schema:
    """Return the columns of the files that tasks write in this mode."""
    return schema.append(pa.field(DELETED, pa.bool_()))


def read_with_deleted(part: ScanTask) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a part of a scan with the column that marks records without a value. Raises as the part.

    A value that is decoded to null, as JSON's `null`, or that cannot be decoded, is not missing: its row is kept.
    """
    pairs = (
        part.read_with_stored() if isinstance(part, DecodedTask) else ((rows, rows) for rows in part.read())
    )
    for stored, decoded in pairs:
        yield decoded.append_column(DELETED, stored.column(VALUE).is_null())


def latest_rows(files: Sequence[DataFile], folder: StoragePath, columns: UpsertColumns) -> pa.Table | None:
    """Return the last row of each key of each topic; None if there are no rows.

    Memory: the keys of all rows, one file, and the last rows.
    Raises ExportError for a record without a key.
    """
    names = [columns(name) for name in ("topic", "key", "partition", "offset", "timestamp")]
    keys = [_opened(folder, file).read(names) for file in files]
    if not sum(table.num_rows for table in keys):
        return None
    together = pa.concat_tables(keys)
    _ensure_keys(together, columns)
    last = _last_of_each_key(*(together.column(name) for name in names))
    parts: list[pa.Table] = []
    first = 0
    for file, table in zip(files, keys, strict=True):
        own = last[(last >= first) & (last < first + table.num_rows)] - first
        first += table.num_rows
        if len(own):
            parts.extend(_taken(_opened(folder, file), own))
    return pa.concat_tables(parts)


class LatestKeys:
    """The keys of the latest rows, by topic. Memory: a copy of the keys."""

    def __init__(self, latest: pa.Table, columns: UpsertColumns) -> None:
        self._columns = columns
        topics = latest.column(columns("topic"))
        keys = _large(latest.column(columns("key")))
        self._by_topic: list[tuple[pa.Scalar, NDArray[np.int64], pa.Array]] = []
        for topic in topics.unique():
            chosen = np.flatnonzero(pc.equal(topics, topic).to_numpy())
            self._by_topic.append((topic, chosen, keys.take(pa.array(chosen)).combine_chunks()))

    def matches(self, rows: pa.Table) -> NDArray[np.int64]:
        """Return for each row of a table the number of the latest row with its key; -1 if there is none.

        Each call hashes the latest keys: give it many rows.
        """
        found = np.full(rows.num_rows, -1, np.int64)
        topics, keys = rows.column(self._columns("topic")), _large(rows.column(self._columns("key")))
        for topic, chosen, wanted in self._by_topic:
            is_topic = pc.equal(topics, topic.cast(topics.type)).fill_null(False).to_numpy()
            places = pc.index_in(keys, value_set=wanted.cast(keys.type)).fill_null(-1).to_numpy()
            hit = is_topic & (places >= 0)
            found[hit] = chosen[places[hit]]
        return found


def is_newer(
    rows: pa.Table, latest: pa.Table, found: NDArray[np.int64], columns: UpsertColumns
) -> NDArray[np.bool_]:
    """Return for each row of a table whether the row of `LatestKeys.matches` replaces it. False if there is none."""

    def values(table: pa.Table, name: str) -> NDArray[np.int64]:
        column = table.column(columns(name))
        if pa.types.is_timestamp(column.type):
            column = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64())
        array: NDArray[np.int64] = column.fill_null(-1).to_numpy()
        return array

    same = values(latest, "partition")[found] == values(rows, "partition")
    later = values(latest, "timestamp")[found] >= values(rows, "timestamp")
    newer: NDArray[np.bool_] = (found >= 0) & (same | later)
    return newer


def _opened(folder: StoragePath, file: DataFile) -> pq.ParquetFile:
    return pq.ParquetFile(pa.BufferReader(read_file(below(folder, file.path))))


def _taken(file: pq.ParquetFile, rows: NDArray[np.int64]) -> Iterator[pa.Table]:
    """Yield rows of a file, row group after row group."""
    first = 0
    for number in range(file.num_row_groups):
        count = file.metadata.row_group(number).num_rows
        own = rows[(rows >= first) & (rows < first + count)] - first
        if len(own):
            yield file.read_row_group(number).take(pa.array(own))
        first += count


def _ensure_keys(rows: pa.Table, columns: UpsertColumns) -> None:
    missing = rows.column(columns("key")).is_null().to_numpy()
    if missing.any():
        topic, partition, offset = (
            rows.column(columns(name))[int(np.argmax(missing))].as_py()
            for name in ("topic", "partition", "offset")
        )
        raise ExportError(
            f"partition {topic}-{partition}: offset {offset}: mode upsert: expected a key, found a record without one"
        )


def _last_of_each_key(
    topics: pa.ChunkedArray,
    keys: pa.ChunkedArray,
    partitions: pa.ChunkedArray,
    offsets: pa.ChunkedArray,
    timestamps: pa.ChunkedArray,
) -> NDArray[np.int64]:
    """Return the positions of the last rows, ascending."""
    encoded = [
        np.asarray(_large(one).combine_chunks().dictionary_encode().indices, np.int64)
        for one in (topics, keys)
    ]
    codes = encoded[0] * (encoded[1].max() + 1) + encoded[1]
    partition, offset = partitions.to_numpy(), offsets.to_numpy()
    time = timestamps.cast(pa.timestamp("us", timestamps.type.tz)).cast(pa.int64()).fill_null(-1).to_numpy()
    order = np.lexsort((offset, partition, codes))
    order = order[_is_last(codes[order], partition[order])]
    order = order[np.lexsort((offset[order], time[order], codes[order]))]
    order = order[_is_last(codes[order])]
    return np.sort(order)


def _large(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return text and bytes with offsets of 64 bits: one array of those with 32 bits has at most 2 GiB."""
    if pa.types.is_string(column.type):
        return column.cast(pa.large_string())
    if pa.types.is_binary(column.type):
        return column.cast(pa.large_binary())
    return column


def _is_last(*sorted_columns: NDArray[np.int64]) -> NDArray[np.bool_]:
    last = np.ones(len(sorted_columns[0]), np.bool_)
    last[:-1] = False
    for column in sorted_columns:
        last[:-1] |= column[1:] != column[:-1]
    return last
