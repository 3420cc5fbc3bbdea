"""kafkafmt on Spark: `register`, and the conversion of a log directory as a job, one task a segment."""

from kafkafmt.spark.archive import ArchiveError
from kafkafmt.spark.convert import SparkUnavailableError, convert_on_spark
from kafkafmt.spark.shipping import register

__all__ = ["ArchiveError", "SparkUnavailableError", "convert_on_spark", "register"]
