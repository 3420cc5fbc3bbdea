"""The formats of tables, by name. Their libraries are imported when a table of the format is opened."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kafkafmt.export.errors import ExportError
from kafkafmt.log.topic_configs import is_topic_name
from kafkafmt.storage import Storages

if TYPE_CHECKING:
    from kafkafmt.export.tables import Destination, TableCommitter
    from kafkafmt.storage import StoragePath


def open_table(destination: Destination, topic: str | None) -> TableCommitter:
    """Return the committer of the table of a topic; None is the topic of a table of all topics.

    Raises ExportError if the package of the format is missing; ValueError and OSError as
    `Storages.locate`.
    """
    if destination.format == "parquet":
        from kafkafmt.export.parquet import ParquetTable

        return ParquetTable(_folder(destination, topic))
    if destination.format == "delta":
        from kafkafmt.export.delta import DeltaTable

        return DeltaTable(_folder(destination, topic), destination.options)
    from kafkafmt.export.iceberg import IcebergTable
    from kafkafmt.export.iceberg_names import parse_name

    named = parse_name(destination.target)
    return IcebergTable(named if topic is None else (*named, topic), destination.catalog, destination.options)


def destination_folder(destination: Destination) -> StoragePath | None:
    """Return the folder of a destination; None for a namespace of Iceberg.

    Raises ExportError for a name that no namespace has, and for options that the format does not have; ValueError and
    OSError as `Storages.locate`.
    """
    if destination.format == "iceberg":
        from kafkafmt.export.iceberg_names import parse_name

        parse_name(destination.target)
        return None
    if destination.format == "parquet" and destination.options:
        raise ExportError(f"option {min(destination.options)!r}: a table of Parquet files has no options")
    settings = None
    if destination.format == "delta":
        from kafkafmt.export.stores import delta_settings

        settings = delta_settings(destination.target, destination.options)
    return Storages(settings).locate(destination.target).absolute()


def _folder(destination: Destination, topic: str | None) -> StoragePath:
    folder = destination_folder(destination)
    assert folder is not None
    if topic is None:
        return folder
    if not is_topic_name(topic):  # a broker may name any: with a slash, the folder would be elsewhere
        raise ExportError(f"expected the name of a topic, found {topic!r}")
    return folder / topic
