"""Export topics into tables with a Spark job: the public function. The job imports pyarrow, this module does not."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from kafkafmt.export.plan import ExportOptions, ScanSource
    from kafkafmt.export.tables import Destination

_REPORTS = (
    "topic string, location string, status string, "
    "records bigint, files bigint, size_in_bytes bigint, error string"
)


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
    from kafkafmt.export.plan import ExportOptions
    from kafkafmt.export.tables import Destination
    from kafkafmt.spark.jobs.export_tasks import run_export_on_spark

    if not isinstance(destination, Destination):
        destination = Destination(destination, format)
    rows = [
        (
            report.topic,
            report.location,
            "exported" if report.error is None else "failed",
            report.rows,
            report.files,
            report.size_in_bytes,
            None if report.error is None else str(report.error),
        )
        for report in run_export_on_spark(spark, scan, destination, options or ExportOptions())
    ]
    return spark.createDataFrame(rows, _REPORTS)
