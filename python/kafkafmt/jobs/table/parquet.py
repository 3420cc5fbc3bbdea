"""A table's rows as a Parquet file, in row groups bounded in bytes; it is there once all of it is.

Columns are named as Spark's Kafka source names them, with its types, but for timestamps in milliseconds: as Kafka has
them, so that none is too large.
"""

from __future__ import annotations

import contextlib
import fcntl
import glob
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kafkafmt._util.directory_lock import lock_surroundings
from kafkafmt._util.files import open_regular
from kafkafmt.jobs.files import make_durable
from kafkafmt.jobs.table.state import TableError
from kafkafmt.log.writer import wait_for_lock

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    from kafkafmt.jobs.table.rows import TableRow

TABLE_COLUMNS = ("topic", "partition", "key", "value", "timestamp", "offset", "timestampType")

# What a row takes in lists and arrays beside the bytes of key and value.
_ROW_BYTES = 300
# What is written of a group, and what is compressed of it, comes on top.
_GROUP_PART = 4
_MOST_GROUP_ROWS = 100_000
# However much memory there is: Arrow's offsets have 32 bits.
_MOST_GROUP_BYTES = 128 * 1024 * 1024


def table_schema() -> pa.Schema:
    """The schema of the file. Raises TableError without pyarrow."""
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
    """Have pyarrow start no more threads in this process than it must: each takes address space, a stack."""
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
    """Write rows to `path`, which appears once it is whole and durable; returns how many there are.

    memory_bytes: what rows and their row group may take until they are written. before_rename: is called with the
    status of the file, once it is durable, before it gets its name. Raises TableError without pyarrow;
    DirectoryLockedError if a broker runs on the folder; OSError.
    """
    with lock_surroundings(path):
        _remove_dead(path)
        return _write_table(path, rows, memory_bytes, before_rename)


def _write_table(
    path: Path, rows: Iterable[TableRow], memory_bytes: int, before_rename: Callable[[os.stat_result], None]
) -> int:
    schema = table_schema()
    import pyarrow.parquet as pq

    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    count = 0
    try:
        with temporary.open("wb") as file:
            wait_for_lock(file.fileno())  # until it is closed: this is no dead process's file
            with pq.ParquetWriter(file, schema, compression="zstd", use_dictionary=["topic"]) as writer:
                for group in _groups(rows, memory_bytes // _GROUP_PART):
                    writer.write_batch(_record_batch(group, schema))
                    count += len(group)
            file.flush()
            os.fsync(file.fileno())
            before_rename(os.fstat(file.fileno()))
            temporary.rename(path)
        make_durable(path.absolute().parent)
    except OSError as error:
        if error.errno is not None and error.filename is None:
            error.filename = str(path)
        raise
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()
    return count


def _remove_dead(path: Path) -> None:
    """Remove the temporary files of runs that were killed: nobody locks them."""
    for found in path.parent.glob(f".{glob.escape(path.name)}.*.tmp"):
        with contextlib.suppress(OSError):
            descriptor = open_regular(found)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                found.unlink()
            finally:
                os.close(descriptor)


def _groups(rows: Iterable[TableRow], most_bytes: int) -> Iterator[list[TableRow]]:
    most_bytes = min(most_bytes, _MOST_GROUP_BYTES)
    group: list[TableRow] = []
    size = 0
    for row in rows:
        row_bytes = len(row.key) + len(row.value) + _ROW_BYTES
        if group and (size + row_bytes > most_bytes or len(group) == _MOST_GROUP_ROWS):
            yield group
            group, size = [], 0
        group.append(row)
        size += row_bytes
    if group:
        yield group


def _record_batch(rows: list[TableRow], schema: pa.Schema) -> pa.RecordBatch:
    import pyarrow as pa

    from kafkafmt import arrow_arrays as arrow

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
    from kafkafmt import arrow_arrays as arrow

    offsets = np.zeros(len(cells) + 1, np.int32)
    np.cumsum([len(cell) for cell in cells], out=offsets[1:])
    return arrow.string_array(kind, offsets, b"".join(cells))
