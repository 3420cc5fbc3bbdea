"""Write rows to the Parquet files of a table: split by partition, in row groups, and in files of a target size.

Rows are kept until they fill a row group of their file. If all kept rows exceed the limit, the file with the most gets
a smaller row group. So memory is bounded, whatever the number of partitions.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kafkafmt._util.files import make_folder, sync_path
from kafkafmt.export.errors import ExportError
from kafkafmt.export.schemas import ERRORS, KAFKA_PREFIX, VALUE
from kafkafmt.export.tables import DataFile
from kafkafmt.storage import storage_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kafkafmt.export.layout import FileLayout, WriteOptions
    from kafkafmt.export.partitioning import PartitionField, PartitionValue
    from kafkafmt.storage import StoragePath

# Open files cost memory and a descriptor each. A task that has rows for more partitions closes the largest one first.
_MOST_OPEN = 64
_MICROSECONDS = {"day": 86_400_000_000, "hour": 3_600_000_000}
_UNSAFE = re.compile(r"[^A-Za-z0-9_.=-]")
_MOST_NAME = 200
# Of the usual file systems.
_MOST_FOLDER_BYTES = 255
_NULL_FOLDER = "__HIVE_DEFAULT_PARTITION__"


@dataclass
class _OpenFile:
    """A file that is written, and the rows for its next row group."""

    path: str
    local: Path
    partition: Mapping[str, PartitionValue]
    writer: pq.ParquetWriter
    sink: pa.NativeFile
    footers: list[pq.FileMetaData]
    kept: list[pa.RecordBatch] = field(default_factory=list)
    kept_bytes: int = 0
    undecoded: int = 0


class TableWriter:
    """Writes batches that have the schema of the layout. `close` returns the files; `abort` removes them.

    prefix: of the names of the files, unique for the task.
    """

    def __init__(self, prefix: str, layout: FileLayout, options: WriteOptions) -> None:
        self._prefix, self._layout, self._options = prefix, layout, options
        self._open: dict[tuple[PartitionValue, ...], _OpenFile] = {}
        self._done: list[DataFile] = []
        self._count = self._kept_bytes = 0
        self._schema = pa.schema(
            [one for one in layout.schema if one.name not in layout.leaves_out], layout.schema.metadata
        )
        prefix = KAFKA_PREFIX * layout.flattened
        self._errors = [prefix + name for name in ERRORS if prefix + name in layout.schema.names]
        self._staging: Path | None = None
        if not isinstance(layout.folder, Path):
            self._staging = Path(tempfile.mkdtemp(prefix="kafkafmt-export-"))

    def write(self, batch: pa.RecordBatch) -> None:
        """Write a batch. Raises OSError with the path of the file."""
        if not batch.num_rows:
            return
        for key, rows in _by_partition(batch, self._layout.partitioning):
            file = self._open.get(key)
            if file is None:
                if len(self._open) >= _MOST_OPEN:
                    self._close_file(max(self._open, key=lambda one: self._open[one].sink.tell()))
                file = self._open[key] = self._new_file(key)
            file.kept.append(rows)
            file.undecoded += sum(rows.num_rows - rows.column(name).null_count for name in self._errors)
            size = rows.nbytes
            file.kept_bytes += size
            self._kept_bytes += size
            if file.kept_bytes >= self._options.group_bytes:
                self._write_group(key, file)
        while self._kept_bytes > self._options.buffered_bytes:
            key, file = max(self._open.items(), key=lambda one: one[1].kept_bytes)
            self._write_group(key, file)

    def close(self) -> list[DataFile]:
        """Complete all files and return them."""
        for key in list(self._open):
            self._close_file(key)
        self._remove_staging()
        return self._done

    def abort(self) -> None:
        """Remove all files of this writer. Errors are ignored: the next export removes what is left."""
        for file in self._open.values():
            # After a write that failed, PyArrow's writer also raises RuntimeError.
            for opened in (file.writer, file.sink):
                with contextlib.suppress(Exception):
                    opened.close()
            with contextlib.suppress(OSError):
                file.local.unlink(missing_ok=True)
        for done in self._done:
            with contextlib.suppress(OSError):
                path = below(self._layout.folder, done.path + self._layout.suffix)
                storage_of(path).delete(path)
        self._open.clear()
        self._remove_staging()

    def _remove_staging(self) -> None:
        if self._staging is not None:
            shutil.rmtree(self._staging, ignore_errors=True)

    def _new_file(self, key: tuple[PartitionValue, ...]) -> _OpenFile:
        partition = {one.name: value for one, value in zip(self._layout.partitioning, key, strict=True)}
        folders = [
            _folder(one, value, is_read=self._layout.has_hive_folders)
            for one, value in zip(self._layout.partitioning, key, strict=True)
        ]
        path = "/".join([*folders, f"{self._prefix}-{self._count:04}.parquet"])
        self._count += 1
        if self._staging is not None:
            local = self._staging / f"{self._count}.parquet"
        else:
            assert isinstance(self._layout.folder, Path)
            local = self._layout.folder / (path + self._layout.suffix)
        footers: list[pq.FileMetaData] = []
        with _naming(local), self._naming_column(folders):
            make_folder(local.parent)
            sink = pa.OSFile(str(local), "wb")
            writer = pq.ParquetWriter(sink, self._schema, metadata_collector=footers, **self._settings())
        return _OpenFile(path, local, partition, writer, sink, footers)

    @contextlib.contextmanager
    def _naming_column(self, folders: Sequence[str]) -> Iterator[None]:
        """Raise ExportError, with the column, for a value of a partition that no folder can be named by."""
        try:
            yield
        except OSError as error:
            if error.errno != errno.ENAMETOOLONG or not folders:
                raise
            longest = max(folders, key=len)
            column = self._layout.partitioning[folders.index(longest)].column
            raise ExportError(
                f"{self._layout.folder}: column {column!r}: expected values of partitions whose folders have names of "
                f"at most {_MOST_FOLDER_BYTES} bytes, found one of {len(longest)}: {longest[:40]!r}..."
            ) from None

    def _settings(self) -> dict[str, object]:
        """Return the settings of Parquet.

        Offsets and timestamps ascend, so their differences are stored. All other columns begin with a dictionary, which
        Parquet gives up when it has 1 MiB. The bounds of long bytes select nothing.
        """
        prefix = KAFKA_PREFIX * self._layout.flattened
        payloads = {
            one.name
            for one in self._schema
            if one.name.removeprefix(KAFKA_PREFIX) in (VALUE, "key") and pa.types.is_binary(one.type)
        }
        ascending = {
            one.name
            for one in self._schema
            if one.name in (prefix + "offset", prefix + "timestamp")
            and (pa.types.is_int64(one.type) or pa.types.is_timestamp(one.type))
        }
        names = {name.path: name.name for name in _leaves(self._schema)}
        return {
            "compression": self._options.compression,
            "use_dictionary": [path for path in names if path not in ascending],
            "column_encoding": dict.fromkeys(ascending, "DELTA_BINARY_PACKED"),
            "write_statistics": [path for path, top in names.items() if top not in payloads],
        }

    def _write_group(self, key: tuple[PartitionValue, ...], file: _OpenFile) -> None:
        if file.kept:
            table = pa.Table.from_batches(file.kept)
            if self._layout.leaves_out:
                table = table.select(self._schema.names)
            with _naming(file.local):
                file.writer.write_table(table, row_group_size=table.num_rows)
            self._kept_bytes -= file.kept_bytes
            file.kept, file.kept_bytes = [], 0
        if file.sink.tell() >= self._options.target_file_bytes:
            self._close_file(key)

    def _close_file(self, key: tuple[PartitionValue, ...]) -> None:
        file = self._open[key]
        if file.kept:
            self._write_group(key, file)
            if key not in self._open:  # it had reached its size
                return
        with _naming(file.local):
            file.writer.close()
            file.sink.close()
            size = file.local.stat().st_size
            if self._staging is None:
                sync_path(file.local)
                sync_path(file.local.parent)
            else:
                path = below(self._layout.folder, file.path + self._layout.suffix)
                storage_of(path).put(file.local, path)
        del self._open[key]
        footer = file.footers[0]
        self._done.append(DataFile(file.path, footer.num_rows, size, file.partition, footer, file.undecoded))


def below(folder: StoragePath, path: str) -> StoragePath:
    """Return the path of a file below a folder; `path` is relative, with `/`."""
    for name in path.split("/"):
        folder = folder / name
    return folder


@dataclass(frozen=True)
class _Leaf:
    """A column of Parquet: its path, and the column of the table that it belongs to."""

    path: str
    name: str


def _leaves(schema: pa.Schema) -> Iterator[_Leaf]:
    empty = pa.BufferOutputStream()
    with pq.ParquetWriter(empty, schema):
        pass
    columns = pq.read_metadata(pa.BufferReader(empty.getvalue())).schema
    tops = set(schema.names)
    for number in range(len(columns)):
        path = columns.column(number).path
        yield _Leaf(path, path if path in tops else _top(path, tops))


def _top(path: str, tops: set[str]) -> str:
    names = path.split(".")
    return next(name for end in range(len(names), 0, -1) if (name := ".".join(names[:end])) in tops)


@contextlib.contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Give an OSError of pyarrow its number and the path of the file."""
    try:
        yield
    except OSError as error:
        if error.filename is not None:
            raise
        number = error.errno
        if number is None:
            number = next(
                (one for one in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) if os.strerror(one) in str(error)),
                errno.EIO,
            )
        raise OSError(
            number, os.strerror(number) if number != errno.EIO else str(error), str(path)
        ) from error


def _folder(one: PartitionField, value: PartitionValue, *, is_read: bool) -> str:
    """Return the name of the folder of a partition. Without readers of the name, it needs no escapes."""
    text = one.text(value)
    name, text = (quote(one.name, safe=" "), _NULL_FOLDER if text is None else quote(text, safe=" "))
    return f"{name}={text}" if is_read else _UNSAFE.sub("_", f"{name}={text}")[:_MOST_NAME]


def _by_partition(
    batch: pa.RecordBatch, fields: tuple[PartitionField, ...]
) -> Iterator[tuple[tuple[PartitionValue, ...], pa.RecordBatch]]:
    """Yield the rows of each partition, with its values. Rows keep their order."""
    if not fields:
        yield (), batch
        return
    encoded = [_encoded(batch.column(one.column), one) for one in fields]
    values = [one.dictionary.to_pylist() for one in encoded]
    if all(len(one) == 1 for one in values):
        yield tuple(one[0] for one in values), batch
        return
    codes = np.zeros(batch.num_rows, np.int64)
    for one, known in zip(encoded, values, strict=True):
        codes = codes * len(known) + np.asarray(one.indices)
    for code in np.unique(codes).tolist():
        key = []
        rest = code
        for known in reversed(values):
            rest, number = divmod(rest, len(known))
            key.append(known[number])
        (rows,) = np.nonzero(codes == code)
        first, last = int(rows[0]), int(rows[-1])
        # A slice keeps its whole batch in memory, so few rows of a batch are copied.
        is_slice = last - first + 1 == len(rows) and 2 * len(rows) >= batch.num_rows
        chosen = batch.slice(first, len(rows)) if is_slice else batch.take(pa.array(rows))
        yield tuple(reversed(key)), chosen


def partition_texts(array: pa.Array, one: PartitionField) -> pa.Array:
    """Return the value of a partition field for each row, as text."""
    encoded = _encoded(array, one)
    texts = pa.array([one.text(value) for value in encoded.dictionary.to_pylist()], pa.string())
    return texts.take(encoded.indices)


def _encoded(array: pa.Array, one: PartitionField) -> pa.DictionaryArray:
    if one.transform == "identity":
        return array.dictionary_encode(null_encoding="encode")
    if pa.types.is_date32(array.type):
        array = array.cast(pa.timestamp("us"))
    if one.transform in _MICROSECONDS:
        ticks = array.cast(pa.timestamp("us", array.type.tz)).view(pa.int64())
        ordinals: NDArray[np.int64] = ticks.fill_null(0).to_numpy() // _MICROSECONDS[one.transform]
    else:
        years = pc.year(array).fill_null(1970).to_numpy() - 1970
        is_month = one.transform == "month"
        ordinals = years * 12 + pc.month(array).fill_null(1).to_numpy() - 1 if is_month else years
    mask = None if not array.null_count else array.is_null().to_numpy(zero_copy_only=False)
    return pa.array(ordinals, pa.int64(), mask=mask).dictionary_encode(null_encoding="encode")
