"""kafkafmt on Spark: logs as a DataFrame, and the conversion of a log directory as a job, one task a segment.

The data source is `kafkafmt.spark.source.KafkafmtDataSource`, in a module of its own as it needs pyspark and pyarrow.
"""

from kafkafmt.spark.context import first_line
from kafkafmt.spark.convert import SparkUnavailableError, convert_on_spark

__all__ = ["SparkUnavailableError", "convert_on_spark", "first_line"]
