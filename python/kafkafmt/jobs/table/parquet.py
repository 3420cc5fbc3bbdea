"""Write the rows of a table to a Parquet file, in row groups of bounded bytes. The file appears once it is complete.

Columns have the names and types of Spark's Kafka source, except that timestamps are in milliseconds. This is Kafka's
unit, so every timestamp fits.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kafkafmt._util.directory_lock import lock_surroundings
from kafkafmt._util.staging import staged_file
from kafkafmt.jobs.table.state import TableError

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    from kafkafmt.jobs.table.rows import TableRow

TABLE_COLUMNS = ("topic", "partition", "key", "value", "timestamp", "offset", "timestampType")

# The bytes of a row in lists and arrays, beside those of key and value.
_ROW_BYTES = 300
# A group gets 1/4 of the memory: its Arrow arrays and its compressed pages come on top.
_GROUP_PART = 4
_MAX_GROUP_ROWS = 100_000
# The most bytes of a group, as Arrow's offsets have 32 bits.
_MAX_GROUP_BYTES = 128 * 1024 * 1024


def table_schema() -> pa.Schema:
    """Return the schema of the file. Raises TableError if pyarrow is not installed."""
    try:
        import pyarrow as pa
    except ImportError:
        raise TableError("a table needs pyarrow: pip install 'kafkafmt[arrow]'") from None
    types: dict[str, Any] = {
        "topic": pa.string(),
        "partition": pa.int32(),
        "key": pa.binary(),
        "value": pa.binary(),
        "timestamp": pa.timestamp("ms", tz="UTC"),
        "offset": pa.int64(),
        "timestampType": pa.int32(),
    }
    return pa.schema([pa.field(name, types[name]) for name in TABLE_COLUMNS])


def bound_threads() -> None:
    """Limit pyarrow's threads in this process to the minimum, as each uses address space and a stack."""
    table_schema()
    import pyarrow as pa

    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)


def write_table(
    path: Path,
    rows: Iterable[TableRow],
    *,
    memory_bytes: int,
    before_rename: Callable[[os.stat_result], None] = lambda status: None,
) -> int:
    """Write rows to `path`, which appears once the file is complete and flushed. Returns the number of rows.

    memory_bytes: the memory for rows and their row group until they are written. before_rename: called with the status
    of the flushed file before it gets its name. Raises TableError if pyarrow is not installed, DirectoryLockedError if
    a broker uses the folder, and OSError.
    """
    with lock_surroundings(path):
        return _write_table(path, rows, memory_bytes, before_rename)


def _write_table(
    path: Path, rows: Iterable[TableRow], memory_bytes: int, before_rename: Callable[[os.stat_result], None]
) -> int:
    schema = table_schema()
    import pyarrow.parquet as pq

    count = 0
    try:
        with (
            staged_file(path, before_rename=before_rename) as file,
            pq.ParquetWriter(file, schema, compression="zstd", use_dictionary=["topic"]) as writer,
        ):
            for group in _groups(rows, memory_bytes // _GROUP_PART):
                writer.write_batch(_record_batch(group, schema))
                count += len(group)
    except OSError as error:
        if error.errno is not None and error.filename is None:
            error.filename = str(path)
        raise
    return count


def _groups(rows: Iterable[TableRow], max_bytes: int) -> Iterator[list[TableRow]]:
    max_bytes = min(max_bytes, _MAX_GROUP_BYTES)
    group: list[TableRow] = []
    size = 0
    for row in rows:
        row_bytes = len(row.key) + len(row.value) + _ROW_BYTES
        if group and (size + row_bytes > max_bytes or len(group) == _MAX_GROUP_ROWS):
            yield group
            group, size = [], 0
        group.append(row)
        size += row_bytes
    if group:
        yield group


def _record_batch(rows: list[TableRow], schema: pa.Schema) -> pa.RecordBatch:
    import pyarrow as pa

    from kafkafmt.columns import arrow

    columns = {
        "topic": _strings(pa.string(), [row.topic_partition.topic.encode() for row in rows]),
        "partition": arrow.number_array(
            pa.int32(), _numbers(np.int32, [row.topic_partition.partition for row in rows])
        ),
        "key": _strings(pa.binary(), [row.key for row in rows]),
        "value": _strings(pa.binary(), [row.value for row in rows]),
        "timestamp": arrow.number_array(
            schema.field("timestamp").type, _numbers(np.int64, [row.timestamp for row in rows])
        ),
        "offset": arrow.number_array(pa.int64(), _numbers(np.int64, [row.offset for row in rows])),
        "timestampType": arrow.number_array(
            pa.int32(), _numbers(np.int32, [row.timestamp_type for row in rows])
        ),
    }
    return pa.record_batch([columns[name] for name in schema.names], schema=schema)


def _numbers(dtype: type[np.signedinteger[Any]], numbers: list[int]) -> NDArray[Any]:
    return np.array(numbers, dtype)


def _strings(kind: pa.DataType, cells: list[bytes]) -> pa.Array:
    from kafkafmt.columns import arrow

    offsets = np.zeros(len(cells) + 1, np.int32)
    np.cumsum([len(cell) for cell in cells], out=offsets[1:])
    return arrow.string_array(kind, offsets, b"".join(cells))
