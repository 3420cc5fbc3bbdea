"""Export topics into tables: Parquet files, Delta and Iceberg tables that continue where they ended."""

from kafkafmt._util.extras import needed_by

with needed_by("kafkafmt.export", "lake"):
    from kafkafmt.export.compaction import CompactionReport, compact
    from kafkafmt.export.errors import (
        ExportArgumentError,
        ExportError,
        OffsetsGoneError,
        SchemaConflictError,
        TableConflictError,
    )
    from kafkafmt.export.exporting import export_topics
    from kafkafmt.export.layout import WriteOptions
    from kafkafmt.export.plan import ExportOptions
    from kafkafmt.export.running import TableReport
    from kafkafmt.export.tables import Destination

__all__ = [
    "CompactionReport",
    "Destination",
    "ExportArgumentError",
    "ExportError",
    "ExportOptions",
    "OffsetsGoneError",
    "SchemaConflictError",
    "TableConflictError",
    "TableReport",
    "WriteOptions",
    "compact",
    "export_topics",
]
