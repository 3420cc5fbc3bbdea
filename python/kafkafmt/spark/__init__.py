"""kafkafmt on Spark: logs as a DataFrame, and the conversion of a log directory as a job, one task a segment.

`register` brings kafkafmt to a session's executors and makes `spark.read.format("kafkafmt")` known. The data source
is `kafkafmt.spark.data_source.KafkafmtDataSource`, in a module of its own as it needs pyspark and pyarrow.
"""

from kafkafmt.spark.archive import ArchiveError
from kafkafmt.spark.context import first_line
from kafkafmt.spark.jobs.convert import SparkUnavailableError, convert_on_spark
from kafkafmt.spark.shipping import register
from kafkafmt.spark.sink.commit import recover

__all__ = ["ArchiveError", "SparkUnavailableError", "convert_on_spark", "first_line", "recover", "register"]
