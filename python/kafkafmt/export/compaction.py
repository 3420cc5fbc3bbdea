"""Join the small files of a table to larger ones. Rows and offsets stay as they are, and exports may run meanwhile."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kafkafmt._util.sizes import MIB
from kafkafmt.export.errors import ExportError, TableConflictError
from kafkafmt.export.formats import open_table
from kafkafmt.export.layout import WriteOptions

if TYPE_CHECKING:
    from kafkafmt.export.iceberg import IcebergTable
    from kafkafmt.export.tables import DataFile, Destination


@dataclass(frozen=True)
class CompactionReport:
    """What a compaction has done: the files that it removed from the table, and those that it added."""

    location: str
    files_removed: int
    files_added: int


def compact(
    destination: Destination, topic: str | None = None, *, target_file_bytes: int = 128 * MIB
) -> CompactionReport:
    """Join the small files of a table, in one commit.

    Of an Iceberg table, files are small if they are smaller than three quarters of the target size. Of a Delta table,
    `deltalake` joins the files that fit into one of the target size together.

    Files that the table no longer has stay until they expire: Delta's vacuum, or the expiry of Iceberg's snapshots.

    Args:
        destination: where the table is: Delta or Iceberg.
        topic: None for a table of all topics.
        target_file_bytes: how large the files may become.

    Raises ExportError for plain Parquet files, for a size below 1, or if there is no table; TableConflictError if
    another compaction is running, or another writer has removed one of the files.
    """
    from kafkafmt.export.delta import DeltaTable
    from kafkafmt.export.iceberg import IcebergTable

    options = WriteOptions(target_file_bytes=target_file_bytes)
    table = open_table(destination, topic)
    if isinstance(table, DeltaTable):
        removed, added = table.compact(target_file_bytes)
        return CompactionReport(table.location, removed, added)
    if isinstance(table, IcebergTable):
        return _compact_iceberg(table, options)
    raise ExportError(
        f"{table.location}: plain Parquet files cannot be compacted, because readers would see rows twice or not at "
        "all meanwhile: expected a table of format delta or iceberg"
    )


def _compact_iceberg(table: IcebergTable, options: WriteOptions) -> CompactionReport:
    from kafkafmt.export.iceberg_rewriting import rewrite, small_files
    from kafkafmt.export.tables import TableCommit

    run = uuid.uuid4().hex
    added: list[DataFile] = []
    is_known = False
    try:
        table.begin_maintenance(run)
        current = table.require()
        state = table.state_of(current)
        with table.errors():
            groups = small_files(current, options.target_file_bytes)
            for number, group in enumerate(groups):
                target = (table.data_folder, state, options)
                added += rewrite(f"part-{run}-{number:05}", current, group, target)
        if groups:
            removed = [task for group in groups for task in group]
            table.replace(TableCommit(run, added, {}), state, removed)
        is_known = True
    except TableConflictError:
        table.abort(added)
        is_known = True
        raise
    finally:
        table.end(is_known=is_known)
    return CompactionReport(table.location, sum(map(len, groups)), len(added))
