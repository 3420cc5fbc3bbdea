"""The table of `kafkafmt.jobs.table` as a Spark job: the same rows, found by grouping what the data source reads."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kafkafmt._util.directory_lock import lock_surroundings
from kafkafmt.jobs.table import TABLE_COLUMNS
from kafkafmt.spark.context import first_line, spark_context
from kafkafmt.spark.jobs.files import list_files
from kafkafmt.spark.jobs.running import JobError, context_of
from kafkafmt.spark.jobs.verify import check_files
from kafkafmt.spark.shipping import register

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_KEY = ("topic", "partition", "key")


@dataclass(frozen=True)
class Tabled:
    """What a table was made of: records, how many of them had no key, and its rows; damage: what was left out."""

    records: int
    null_keys: int
    rows: int
    damage: Sequence[dict[str, Any]] = ()


@dataclass(frozen=True)
class TableOptions:
    """Which topics a table is of, and what is left out: transactions that are open or were aborted, and damage."""

    topics: Sequence[str]
    isolation: str = "read_committed"
    skips_damage: bool = False


def table_on_spark(
    source: Path,
    target: Path,
    options: TableOptions,
    *,
    master: str | None = None,
    settings: Mapping[str, str] | None = None,
) -> Tabled:
    """`write_table` by a Spark of its own. settings: of Spark, as `MemoryPlan.spark_conf` gives them.

    Raises SparkUnavailableError, and as `write_table` does.
    """
    with spark_context("kafkafmt table", master, settings or {}) as context:
        from pyspark.sql import SparkSession

        spark = SparkSession(context)
        register(spark)
        return write_table(spark, source, target, options)


def write_table(spark: SparkSession, source: Path, target: Path, options: TableOptions) -> Tabled:
    """Write the latest value of each key under a log directory to a Parquet file, which is there once it is whole.

    spark: a session that kafkafmt is registered with. `source` and `target` must be at the same paths on all machines.
    Raises JobError where Spark gives up, and for a timestamp beyond the microseconds that Spark has, and
    DirectoryLockedError if a broker runs on the folder of `target`.
    """
    staged = target.absolute().with_name(f".{target.name}.{context_of(spark).applicationId}.tmp")
    try:
        with lock_surroundings(target):
            return _write(spark, source, options, staged, target)
    except OSError:
        raise
    except Exception as error:
        raise JobError(first_line(error)) from None
    finally:
        shutil.rmtree(staged, ignore_errors=True)


def _write(spark: SparkSession, source: Path, options: TableOptions, staged: Path, target: Path) -> Tabled:
    import pyarrow.parquet as pq
    from pyspark.sql import Observation
    from pyspark.sql import functions as f

    # Tasks of a DataFrame cannot tell how much they pass over, so the files are checked first.
    damage = _damage(spark, source, options.topics) if options.skips_damage else []
    told = Observation("table")
    records = (
        spark.read.format("kafkafmt")
        .option("isolation", options.isolation)
        .option("onCorrupt", "skip" if options.skips_damage else "fail")
        .option("subscribe", ",".join(options.topics))
        .load(str(source.resolve()))
        .observe(told, f.count(f.lit(1)).alias("records"), f.count("key").alias("keys"))
    )
    spark.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MILLIS")
    rows = latest_values(records).coalesce(1).sortWithinPartitions(*_KEY)
    rows.write.parquet(str(staged), compression="zstd")
    (part,) = staged.glob("part-*.parquet")
    part.rename(target)
    found = told.get
    rows_written = pq.read_metadata(target).num_rows
    return Tabled(found["records"], found["records"] - found["keys"], rows_written, damage)


def _damage(spark: SparkSession, source: Path, topics: Sequence[str]) -> list[dict[str, Any]]:
    found = list_files(source.resolve(), includes_internal=True)
    files = [file for file in found if file.topic_partition and file.topic_partition.topic in topics]
    return [stretch for check in check_files(context_of(spark), files) for stretch in check.damage]


def latest_values(records: DataFrame) -> DataFrame:
    """Of a frame of records, with the columns of the data source, the last of each key that is no tombstone."""
    from pyspark.sql import functions as f

    own = [name for name in TABLE_COLUMNS if name not in _KEY]
    latest = f.max_by(f.struct(*own), "offset").alias("latest")
    found = records.where("key IS NOT NULL").groupBy(*_KEY).agg(latest).where("latest.value IS NOT NULL")
    return found.select(*(name if name in _KEY else f"latest.{name}" for name in TABLE_COLUMNS))
