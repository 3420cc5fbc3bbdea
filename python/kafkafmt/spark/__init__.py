"""kafkafmt on Spark: the conversion of a log directory as a job, one task a segment."""

from kafkafmt.spark.convert import SparkUnavailableError, convert_on_spark

__all__ = ["SparkUnavailableError", "convert_on_spark"]
