"""The formats of tables, by name. Their libraries are imported when a table of the format is opened."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from kafkafmt.export.errors import ExportError
from kafkafmt.storage import Storages

if TYPE_CHECKING:
    from kafkafmt.export.tables import Destination, TableCommitter
    from kafkafmt.storage import StoragePath

FORMATS = ("parquet", "delta", "iceberg")


def open_table(destination: Destination, topic: str | None) -> TableCommitter:
    """Return the committer of the table of a topic; None is the topic of a table of all topics.

    Raises ExportError for an unknown format, or if its package is missing; ValueError and OSError as
    `Storages.locate`.
    """
    if destination.format == "parquet":
        from kafkafmt.export.parquet import ParquetTable

        if destination.options:
            raise ExportError(f"option {min(destination.options)!r}: a table of Parquet files has no options")
        return ParquetTable(_folder(destination, topic))
    if destination.format == "delta":
        from kafkafmt.export.delta import DeltaTable
        from kafkafmt.export.stores import delta_settings

        settings = delta_settings(destination.target, destination.options)
        return DeltaTable(_folder(destination, topic, settings), destination.options)
    if destination.format == "iceberg":
        from kafkafmt.export.iceberg import IcebergTable
        from kafkafmt.export.iceberg_names import parse_name

        named = parse_name(destination.target)
        return IcebergTable(
            named if topic is None else (*named, topic), destination.catalog, destination.options
        )
    raise ExportError(f"format: expected {', '.join(FORMATS)}, found {destination.format!r}")


def _folder(
    destination: Destination, topic: str | None, settings: Mapping[str, str] | None = None
) -> StoragePath:
    folder = Storages(settings).locate(destination.target).absolute()
    return folder if topic is None else folder / topic
