"""The table of `kafkafmt.jobs.table` as a Spark job: the same rows, found by grouping what the data source reads."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kafkafmt.jobs.table import TABLE_COLUMNS
from kafkafmt.spark.context import first_line, spark_context
from kafkafmt.spark.jobs.running import JobError
from kafkafmt.spark.shipping import register

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_KEY = ("topic", "partition", "key")


@dataclass(frozen=True)
class Tabled:
    """What a table was made of: records, and how many of them had no key; and its rows."""

    records: int
    null_keys: int
    rows: int


def table_on_spark(
    source: Path,
    target: Path,
    topics: Sequence[str],
    *,
    isolation: str,
    skips_damage: bool,
    master: str | None = None,
    settings: Mapping[str, str] | None = None,
) -> Tabled:
    """Write the latest value of each key of these topics to a Parquet file, by a Spark of its own.

    settings: of Spark, as `MemoryPlan.spark_conf` gives them. `source` and `target` must be at the same paths on all
    machines; the file is there once it is whole. Raises SparkUnavailableError, and JobError where Spark gives up.
    """
    with spark_context("kafkafmt table", master, settings or {}) as context:
        from pyspark.sql import SparkSession

        spark = SparkSession(context)
        register(spark)
        options = {
            "isolation": isolation,
            "onCorrupt": "skip" if skips_damage else "fail",
            "subscribe": ",".join(topics),
        }
        staged = target.with_name(f".{target.name}.{context.applicationId}.tmp")
        try:
            return _write(spark, str(source.resolve()), options, staged, target)
        except OSError:
            raise
        except Exception as error:
            raise JobError(first_line(error)) from None
        finally:
            shutil.rmtree(staged, ignore_errors=True)


def _write(
    spark: SparkSession, source: str, options: Mapping[str, str], staged: Path, target: Path
) -> Tabled:
    import pyarrow.parquet as pq
    from pyspark.sql import Observation
    from pyspark.sql import functions as f

    told = Observation("table")
    records = (
        spark.read.format("kafkafmt")
        .options(**options)
        .load(source)
        .observe(told, f.count(f.lit(1)).alias("records"), f.count("key").alias("keys"))
    )
    spark.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
    rows = latest_values(records).coalesce(1).sortWithinPartitions(*_KEY)
    rows.write.parquet(str(staged), compression="zstd")
    (part,) = staged.glob("part-*.parquet")
    part.rename(target)
    found = told.get
    return Tabled(found["records"], found["records"] - found["keys"], pq.read_metadata(target).num_rows)


def latest_values(records: DataFrame) -> DataFrame:
    """Of a frame of records, with the columns of the data source, the last of each key that is no tombstone."""
    from pyspark.sql import functions as f

    own = [name for name in TABLE_COLUMNS if name not in _KEY]
    latest = f.max_by(f.struct(*own), "offset").alias("latest")
    found = records.where("key IS NOT NULL").groupBy(*_KEY).agg(latest).where("latest.value IS NOT NULL")
    return found.select(*(name if name in _KEY else f"latest.{name}" for name in TABLE_COLUMNS))
