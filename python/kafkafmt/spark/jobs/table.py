"""Write the table of `kafkafmt.jobs.table` with a Spark job, which groups the records of the data source by key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kafkafmt._util.directory_lock import lock_surroundings
from kafkafmt._util.files import publish
from kafkafmt._util.staging import StagedFolder
from kafkafmt.jobs.table import TABLE_COLUMNS
from kafkafmt.log.time_range import EVERYTHING, TimeRange
from kafkafmt.spark.context import first_line, spark_session
from kafkafmt.spark.jobs.files import list_files
from kafkafmt.spark.jobs.running import JobError
from kafkafmt.spark.jobs.verify import check_files
from kafkafmt.spark.shipping import register
from kafkafmt.storage import RemotePath, StoragePath

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


_KEY = ("topic", "partition", "key")


@dataclass(frozen=True)
class TableSummary:
    """What a table was made of: the records read, those without a key, its rows, and the damage left out."""

    records: int
    null_keys: int
    rows: int
    damage: Sequence[dict[str, Any]] = ()


@dataclass(frozen=True)
class TableOptions:
    """The topics of a table, and the records that are left out.

    isolation: `read_committed` leaves out open and aborted transactions. skips_damage: leave out damaged batches and
    report them. from_segment_start: also read records below the log start offset. times: bounds each partition by the
    timestamps of its records.
    """

    topics: Sequence[str]
    isolation: str = "read_committed"
    skips_damage: bool = False
    from_segment_start: bool = False
    times: TimeRange = EVERYTHING

    @property
    def bounds(self) -> dict[str, str]:
        """The options of the source for `times`."""
        given = {"startingTimestamp": self.times.start_ms, "endingTimestamp": self.times.end_ms}
        return {name: str(time) for name, time in given.items() if time is not None}


def table_on_spark(
    source: StoragePath,
    target: Path,
    options: TableOptions,
    *,
    master: str | None = None,
    settings: Mapping[str, str] | None = None,
) -> TableSummary:
    """Start Spark, and call `write_table`. settings: Spark's settings, as from `kafkafmt.spark.spark_conf`.

    Raises SparkUnavailableError, and the errors of `write_table`.
    """
    with spark_session("kafkafmt table", master, settings or {}) as spark:
        register(spark)
        return write_table(spark, source, target, options)


def write_table(
    spark: SparkSession, source: StoragePath, target: Path, options: TableOptions
) -> TableSummary:
    """Write the latest value of each key under a log directory to a Parquet file, which appears when it is complete.

    spark: a session with kafkafmt registered. `source` and `target` must be at the same paths on all machines. Raises
    JobError if Spark fails the job, or a timestamp exceeds Spark's microseconds; DirectoryLockedError if a broker runs
    on the folder of `target`; OSError.
    """
    with ExitStack() as stack:
        stack.enter_context(lock_surroundings(target))
        staged = StagedFolder(target.absolute())
        stack.callback(staged.remove)
        try:
            return _write(spark, source, options, staged.path / "rows", target)
        except OSError:
            raise
        except Exception as error:
            raise JobError(first_line(error)) from None


def _write(
    spark: SparkSession, source: StoragePath, options: TableOptions, staged: Path, target: Path
) -> TableSummary:
    import pyarrow.parquet as pq
    from pyspark.sql import Observation
    from pyspark.sql import functions as f

    # The tasks of a DataFrame cannot report the damage that they skip, so the files are checked first.
    damage = _damage(spark, source, options.topics) if options.skips_damage else []
    observed = Observation("table")
    records = (
        spark.read.format("kafkafmt")
        .option("isolation", options.isolation)
        .option("onCorrupt", "skip" if options.skips_damage else "fail")
        .option("fromSegmentStart", options.from_segment_start)
        .option("subscribe", ",".join(options.topics))
        .options(**options.bounds)
        .options(**(source.storage.settings if isinstance(source, RemotePath) else {}))
        .load(str(source.resolve()))
        .observe(observed, f.count(f.lit(1)).alias("records"), f.count("key").alias("keys"))
    )
    spark.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MILLIS")
    rows = latest_values(records).coalesce(1).sortWithinPartitions(*_KEY)
    rows.write.parquet(str(staged), compression="zstd")
    (part,) = staged.glob("part-*.parquet")
    publish(part, target)
    found = observed.get
    rows_written = pq.read_metadata(target).num_rows
    return TableSummary(found["records"], found["records"] - found["keys"], rows_written, damage)


def _damage(spark: SparkSession, source: StoragePath, topics: Sequence[str]) -> list[dict[str, Any]]:
    found = list_files(source.resolve(), includes_internal=True)
    files = [file for file in found if file.topic_partition and file.topic_partition.topic in topics]
    return [damage for check in check_files(spark, files) for damage in check.damage]


def latest_values(records: DataFrame) -> DataFrame:
    """Return the last record of each key that is no tombstone. records: with the columns of the data source."""
    from pyspark.sql import functions as f

    own = [name for name in TABLE_COLUMNS if name not in _KEY]
    latest = f.max_by(f.struct(*own), "offset").alias("latest")
    found = records.where("key IS NOT NULL").groupBy(*_KEY).agg(latest).where("latest.value IS NOT NULL")
    return found.select(*(name if name in _KEY else f"latest.{name}" for name in TABLE_COLUMNS))
