"""kafkafmt on Spark: logs as a DataFrame, and jobs over whole log directories, a task a segment.

`register` brings kafkafmt to a session's executors and makes `spark.read.format("kafkafmt")` known. The data source
is `kafkafmt.spark.data_source.KafkafmtDataSource`, in a module of its own as it needs pyspark and pyarrow. Jobs take
the session, run when they are called, and return a DataFrame of reports.
"""

from kafkafmt.spark.archive import ArchiveError
from kafkafmt.spark.context import SparkUnavailableError, first_line
from kafkafmt.spark.jobs.convert import convert, convert_on_spark
from kafkafmt.spark.jobs.running import JobError
from kafkafmt.spark.jobs.summary import summarize
from kafkafmt.spark.jobs.verify import verify
from kafkafmt.spark.shipping import register
from kafkafmt.spark.sink.commit import recover

__all__ = [
    "ArchiveError",
    "JobError",
    "SparkUnavailableError",
    "convert",
    "convert_on_spark",
    "first_line",
    "recover",
    "register",
    "summarize",
    "verify",
]
