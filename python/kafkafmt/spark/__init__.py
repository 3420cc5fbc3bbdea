"""kafkafmt on Spark: read and write logs as DataFrames, and run jobs over whole log directories.

`register` ships kafkafmt to a session's executors and registers the format of `spark.read.format("kafkafmt")`. The data
source is `kafkafmt.spark.data_source.KafkafmtDataSource`, a separate module because it needs pyspark and pyarrow. Jobs
take the session, run when they are called, and return a DataFrame of reports.
"""

from kafkafmt.spark.archive import ArchiveError
from kafkafmt.spark.context import SparkUnavailableError, first_line
from kafkafmt.spark.jobs.convert import convert, convert_on_spark
from kafkafmt.spark.jobs.erase import erase, erase_runner
from kafkafmt.spark.jobs.export import export
from kafkafmt.spark.jobs.running import JobError
from kafkafmt.spark.jobs.summary import summarize
from kafkafmt.spark.jobs.verify import verify
from kafkafmt.spark.memory_settings import spark_conf
from kafkafmt.spark.scans import read_scan
from kafkafmt.spark.shipping import register
from kafkafmt.spark.sink.commit import recover

__all__ = [
    "ArchiveError",
    "JobError",
    "SparkUnavailableError",
    "convert",
    "convert_on_spark",
    "erase",
    "erase_runner",
    "export",
    "first_line",
    "read_scan",
    "recover",
    "register",
    "spark_conf",
    "summarize",
    "verify",
]
