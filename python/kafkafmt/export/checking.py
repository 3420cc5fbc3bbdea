"""Check the destination of an export before its first table: what is wrong for all tables is one error."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from kafkafmt.export.errors import ExportError
from kafkafmt.export.formats import destination_folder
from kafkafmt.export.runs import PRIVATE_FOLDER
from kafkafmt.export.tables import UPSERT
from kafkafmt.log.segment import is_segment_file_name
from kafkafmt.storage import RemotePath, storage_of
from kafkafmt.types import TopicPartition

if TYPE_CHECKING:
    from kafkafmt.export.tables import Destination
    from kafkafmt.storage import StoragePath

_OF_TABLES = (PRIVATE_FOLDER, "_delta_log")


def ensure_destination(destination: Destination, mode: str, sources: Iterable[Path]) -> None:
    """Raise ExportError if no table can be created at a destination, or if it is among logs.

    sources: the local folders that the export reads. Raises OSError if the destination cannot be listed.
    """
    if not destination.target:
        raise ExportError("destination: expected a folder or a URI, found ''")
    if mode == UPSERT and destination.format == "parquet":
        raise ExportError(
            "mode upsert: plain Parquet files cannot replace rows: expected format delta or iceberg"
        )
    try:
        folder = destination_folder(destination)
    except ValueError as error:
        raise ExportError(" ".join(str(error).split())) from None
    if folder is not None:
        _ensure_apart(folder, sources)
        _ensure_no_logs(folder, one_table=destination.one_table)


def _ensure_apart(folder: StoragePath, sources: Iterable[Path]) -> None:
    if isinstance(folder, RemotePath):
        return
    resolved = folder.resolve()
    for source in sources:
        if source.resolve() in (resolved, *resolved.parents):
            raise ExportError(f"{folder}: expected a folder outside of the source, {source}")


def _ensure_no_logs(folder: StoragePath, *, one_table: bool) -> None:
    """Raise ExportError for a folder with logs, and for a table in which other tables would be created."""
    try:
        with storage_of(folder).entries(folder) as entries:
            names = [entry.name for entry in entries]
    except FileNotFoundError:
        return
    except NotADirectoryError:
        raise ExportError(f"{folder}: expected a folder, found a file") from None
    for name in names:
        if is_segment_file_name(name):
            raise ExportError(f"{folder}: expected a folder for tables, found the segment {name}")
        if name in _OF_TABLES and not one_table:
            raise ExportError(
                f"{folder}: expected a folder for tables, found a table: only an export into one table continues it"
            )
        # A table can have such a name, too.
        if (
            isinstance(folder, Path)
            and TopicPartition.from_folder_name(name)
            and _has_segments(folder / name)
        ):
            raise ExportError(f"{folder}: expected a folder for tables, found the partition folder {name}")


def _has_segments(folder: Path) -> bool:
    return folder.is_dir() and any(is_segment_file_name(path.name) for path in folder.iterdir())
