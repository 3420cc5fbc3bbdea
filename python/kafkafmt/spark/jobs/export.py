"""Export topics into tables with a Spark job: the public function. The job imports pyarrow, this module does not."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from kafkafmt.export.plan import ExportOptions, ScanSource
    from kafkafmt.export.tables import Destination

_REPORT_COLUMNS = ["topic", "location", "status", "records", "files", "size_in_bytes", "error"]


def export(
    spark: SparkSession,
    scan: ScanSource,
    destination: str | Destination,
    options: ExportOptions | None = None,
    *,
    format: str = "parquet",  # noqa: A002
) -> DataFrame:
    """Export topics into tables, as `kafkafmt export` does, and return a row for each table.

    Args:
        spark: a session, also of Spark Connect. `kafkafmt.spark.register` ships kafkafmt to its executors.
        scan: what is exported: `kafkafmt.scan(...)`.
        destination: a folder or URI that all machines have at the same path; or a `Destination`, which can have a
            catalog, options of the format, and one table for all topics.
        format: parquet, delta or iceberg, if `destination` is a folder.

    Returns topic, location, status (`exported` or `failed`), records, files, size_in_bytes and error.

    A table that fails leaves the others unaffected. Raises JobError if Spark fails the job: then nothing is exported.
    """
    import pyarrow as pa

    from kafkafmt.export.plan import ExportOptions
    from kafkafmt.export.tables import Destination
    from kafkafmt.spark.jobs.export_tasks import run_export_on_spark

    if not isinstance(destination, Destination):
        destination = Destination(destination, format)
    reports = list(run_export_on_spark(spark, scan, destination, options or ExportOptions()))
    columns = [
        pa.array([report.topic for report in reports], pa.string()),
        pa.array([report.location for report in reports], pa.string()),
        pa.array(["exported" if report.error is None else "failed" for report in reports], pa.string()),
        pa.array([report.rows for report in reports], pa.int64()),
        pa.array([report.files for report in reports], pa.int64()),
        pa.array([report.size_in_bytes for report in reports], pa.int64()),
        pa.array([None if report.error is None else str(report.error) for report in reports], pa.string()),
    ]
    # Spark keeps a table of Arrow as it is. It would run a job for rows.
    return spark.createDataFrame(pa.Table.from_arrays(columns, _REPORT_COLUMNS))
