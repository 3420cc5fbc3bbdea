"""Rewrite data files of an Iceberg table: to join small files, and to leave out rows that newer ones replace.

Files are read by `pyiceberg`, which applies delete files and older schemas, and are written as the files of an export.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from kafkafmt.export.layout import FileLayout
from kafkafmt.export.schemas import DELETED, KAFKA_PREFIX, conform
from kafkafmt.export.upsert import LatestKeys, is_newer
from kafkafmt.export.upsert_columns import UpsertColumns
from kafkafmt.export.writing import TableWriter, below
from kafkafmt.storage import storage_of

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from pyiceberg.table import FileScanTask, Table

    from kafkafmt.export.layout import WriteOptions
    from kafkafmt.export.tables import DataFile, TableState
    from kafkafmt.storage import StoragePath


def small_files(table: Table, target_file_bytes: int) -> list[list[FileScanTask]]:
    """Return groups of files to join. Those of a group are in one partition, and have at most the target size together.

    Files of at least three quarters of the target size are left as they are.
    """
    partitions: dict[tuple[object, ...], list[FileScanTask]] = {}
    for task in table.scan().plan_files():
        values = tuple(task.file.partition[at] for at in range(len(task.file.partition)))
        if (
            task.file.spec_id == table.spec().spec_id
            and task.file.file_size_in_bytes < target_file_bytes * 3 // 4
        ):
            partitions.setdefault(values, []).append(task)
    groups: list[list[FileScanTask]] = []
    for tasks in partitions.values():
        size = 0
        group: list[FileScanTask] = []
        for task in sorted(tasks, key=lambda one: one.file.file_path):
            if group and size + task.file.file_size_in_bytes > target_file_bytes:
                groups.append(group)
                group, size = [], 0
            group.append(task)
            size += task.file.file_size_in_bytes
        groups.append(group)
    return [group for group in groups if len(group) > 1]


def read_files(
    table: Table, tasks: Iterable[FileScanTask], columns: Sequence[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of files, as the current schema of the table has them. columns: None for all."""
    from pyiceberg.expressions import AlwaysTrue
    from pyiceberg.io.pyarrow import ArrowScan

    schema = table.schema() if columns is None else table.schema().select(*columns)
    scan = ArrowScan(table.metadata, table.io, schema, AlwaysTrue())
    for task in tasks:  # one after the other: pyiceberg keeps the rows of all files that it reads at a time
        yield from scan.to_record_batches([task])


def rewrite(
    prefix: str,
    table: Table,
    tasks: Sequence[FileScanTask],
    target: tuple[StoragePath, TableState, WriteOptions],
    is_kept: NDArray[np.bool_] | None = None,
) -> list[DataFile]:
    """Write the rows of files to new files, and return these. is_kept: of each row; None if all are.

    prefix: of the names of the files. target: the folder of data files, the state of the table, and how to write. If it
    fails, it removes its files.
    """
    folder, state, options = target
    assert state.schema is not None
    writer = TableWriter(prefix, _layout(folder, state), options)
    first = 0
    try:
        for batch in read_files(table, tasks):
            if is_kept is not None:
                own = is_kept[first : first + batch.num_rows]
                first += batch.num_rows
                batch = batch.filter(pa.array(own))
            for conformed in conform(batch, state.schema):
                writer.write(conformed)
        return writer.close()
    except BaseException:
        writer.abort()
        raise


def merged_files(
    prefix: str,
    table: Table,
    latest: pa.Table,
    columns: UpsertColumns,
    target: tuple[StoragePath, TableState, WriteOptions],
) -> tuple[list[DataFile], list[FileScanTask]]:
    """Write the latest rows, and the files that have rows with their keys without these.

    target: as of `rewrite`. Returns the new files, and those of the table that they replace. Memory: the latest rows,
    and the keys of one file.
    """
    folder, state, options = target
    assert state.schema is not None
    keys = [columns(name) for name in ("topic", "key", "partition", "timestamp")]
    is_stale = np.zeros(latest.num_rows, np.bool_)
    latest_keys = LatestKeys(latest, columns)
    added: list[DataFile] = []
    removed: list[FileScanTask] = []
    writer = TableWriter(f"{prefix}-latest", _layout(folder, state), options)
    try:
        for number, task in enumerate(table.scan().plan_files()):
            batches = list(read_files(table, [task], keys))
            if not batches:  # all of its rows are deleted
                continue
            rows = pa.Table.from_batches(batches)
            found = latest_keys.matches(rows)
            newer = is_newer(rows, latest, found, columns)
            is_stale[found[(found >= 0) & ~newer]] = True
            if newer.any():
                removed.append(task)
                added += rewrite(f"{prefix}-{number:05}", table, [task], target, ~newer)
        deleted = latest.column(DELETED).to_numpy()
        rows = latest.filter(pa.array(~(deleted | is_stale))).drop_columns([DELETED])
        for batch in rows.to_batches():
            for conformed in conform(batch, state.schema):
                writer.write(conformed)
        return [*added, *writer.close()], removed
    except BaseException:
        writer.abort()
        for file in added:
            path = below(folder, file.path)
            storage_of(path).delete(path)
        raise


def _layout(folder: StoragePath, state: TableState) -> FileLayout:
    assert state.schema is not None
    is_flattened = KAFKA_PREFIX + "offset" in state.schema.names
    return FileLayout(
        folder,
        state.schema,
        state.partitioning,
        flattened=is_flattened,
        has_hive_folders=False,
    )
