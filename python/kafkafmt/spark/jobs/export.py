"""Export topics into tables with Spark jobs: the public function. The job imports pyarrow, this module does not."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from kafkafmt.export.plan import ExportOptions
    from kafkafmt.export.tables import Destination
    from kafkafmt.scanning.arguments import Path
    from kafkafmt.scanning.scan import Scan

REPORT_COLUMNS = ["topic", "location", "status", "records", "files", "size_in_bytes", "error", "undecoded"]


def export(
    spark: SparkSession,
    source: Scan | Path | Iterable[Path],
    destination: str | Destination,
    options: ExportOptions | None = None,
    *,
    format: str = "parquet",  # noqa: A002
    **scanned: Any,
) -> DataFrame:
    """Export topics into tables, as `kafkafmt export` does, and return a row for each table.

    Args:
        spark: a session, also of Spark Connect. `kafkafmt.spark.register` ships kafkafmt to its executors.
        source: a scan; or what `kafkafmt.scan` takes as its source: folders and URIs that all machines have.
        destination: a folder or URI that all machines have at the same path; or a `Destination`, which can have a
            catalog, options of the format, and one table for all topics.
        options: as of `kafkafmt export`. Their `processes` have no effect: the session's cores take their place.
        format: parquet, delta or iceberg, if `destination` is text.
        scanned: arguments of `kafkafmt.scan`, such as `topics` and `decode`, if `source` is no scan. `isolation` is
            read_committed by default.

    Returns topic, location, status (`exported` or `failed`), records, files, size_in_bytes, error and undecoded.
    `undecoded` is the number of keys and values that could not be decoded, and are null.

    A table that fails leaves the others unaffected. A job exports up to 100 tables. Raises JobError if Spark fails one:
    then its tables, and those of later jobs, are not exported.
    """
    import pyarrow as pa

    from kafkafmt.export.errors import error_text
    from kafkafmt.export.exporting import destination_of, source_scan
    from kafkafmt.export.plan import ExportOptions
    from kafkafmt.spark.jobs.export_tasks import run_export_on_spark

    found = destination_of(destination, format)
    scan = source_scan(source, scanned)
    reports = list(run_export_on_spark(spark, scan, found, options or ExportOptions()))
    columns = [
        pa.array([report.topic for report in reports], pa.string()),
        pa.array([report.location for report in reports], pa.string()),
        pa.array(["exported" if report.error is None else "failed" for report in reports], pa.string()),
        pa.array([report.rows for report in reports], pa.int64()),
        pa.array([report.files for report in reports], pa.int64()),
        pa.array([report.size_in_bytes for report in reports], pa.int64()),
        pa.array(
            [None if report.error is None else error_text(report.error) for report in reports], pa.string()
        ),
        pa.array([report.undecoded for report in reports], pa.int64()),
    ]
    # Spark keeps a table of Arrow as it is. It would run a job for rows.
    return spark.createDataFrame(pa.Table.from_arrays(columns, REPORT_COLUMNS))
