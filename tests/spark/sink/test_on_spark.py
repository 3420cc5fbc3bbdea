"""`df.write.format("kafkafmt")` and `writeStream` on a real Spark."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pyarrow.fs import FileSelector, FileSystem
from pyspark.sql import DataFrame, SparkSession

from data.real_logs import LOGS
from file_systems import BUCKET
from kafkafmt.log import LogDirectory
from kafkafmt.spark import first_line
from spark.reads import rows
from spark.test_shipping import CLUSTER
from spark.writes import content

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.xdist_group("spark")]

JOB = Path(__file__).parents[1] / "jobs" / "write.py"
FIELDS = ("topic", "partition", "offset", "timestamp", "key", "value", "headers")


def load(spark: SparkSession, path: Path, **options: object) -> DataFrame:
    return spark.read.format("kafkafmt").options(**options).load(str(path))


def save(frame: DataFrame, path: Path, mode: str = "append", **options: object) -> None:
    frame.write.format("kafkafmt").mode(mode).options(**options).save(str(path))


def found_in(path: Path) -> list[dict[str, Any]]:
    """What is read without Spark, in order."""
    return [{**row, "headers": row["headers"] or []} for row in rows(path, columns=",".join(FIELDS))]


def test_real_logs_when_written_by_spark_then_are_read_again(spark: SparkSession, tmp_path: Path) -> None:
    source = load(spark, LOGS, includeHeaders="true", splitBytes="100k")
    save(source, tmp_path / "kept", codec="zstd")
    wanted = found_in(LOGS)
    assert found_in(tmp_path / "kept") == wanted
    save(source.drop("offset"), tmp_path / "dense")
    found = found_in(tmp_path / "dense")
    assert [{**row, "offset": 0} for row in found] == [{**row, "offset": 0} for row in wanted]
    offsets = [row["offset"] for row in found if row["topic"] == "none"]
    assert offsets == list(range(len(offsets)))


def test_batches_when_written_by_spark_then_are_the_same_bytes(spark: SparkSession, tmp_path: Path) -> None:
    source = load(spark, LOGS, unit="batches", splitBytes="64k")
    save(source, tmp_path / "copy", unit="batches")
    for where in LogDirectory(LOGS).partitions():
        logs = [LogDirectory(path).partition(where) for path in (LOGS, tmp_path / "copy")]
        wanted, found = ([bytes(batch.buffer) for batch in log.batches()] for log in logs)
        assert found == wanted


def test_row_that_cannot_be_written_when_met_then_one_line_and_nothing_is_there(
    spark: SparkSession, tmp_path: Path
) -> None:
    frame = spark.range(0, 30_000, 1, 2).selectExpr(
        "encode('v', 'utf-8') AS value",
        "'t' AS topic",
        "cast(if(id = 29000, -1, id % 9) AS int) AS partition",
    )
    with pytest.raises(Exception, match="expected 0 to 2147483647") as caught:
        save(frame, tmp_path)
    assert first_line(caught.value) == "column partition: expected 0 to 2147483647, found -1"
    assert content(tmp_path) == []


def test_offsets_when_they_overlap_then_one_line_in_the_driver(spark: SparkSession, tmp_path: Path) -> None:
    frame = spark.range(0, 100, 1, 2).selectExpr("encode('v', 'utf-8') AS value", "id AS offset")
    save(frame, tmp_path, topic="t", partition=0)
    with pytest.raises(Exception, match="overlap with those that are there") as caught:
        save(frame, tmp_path, topic="t", partition=0)
    assert first_line(caught.value).startswith(
        "partition t-0: offsets 0 to 49 overlap with those that are there"
    )
    assert content(tmp_path) == ["t-0"]
    save(frame.where("id >= 50"), tmp_path, "overwrite", topic="t", partition=0)
    assert load(spark, tmp_path).count() == 50


@pytest.mark.parametrize("mode", ["errorifexists", "ignore"])
def test_mode_when_spark_has_none_of_it_then_it_says_so(
    spark: SparkSession, tmp_path: Path, mode: str
) -> None:
    frame = spark.range(1).selectExpr("encode('v', 'utf-8') AS value")
    with pytest.raises(Exception, match='Please use either the "Append" or "Overwrite" mode'):
        save(frame, tmp_path, mode, topic="t", partition=0)


def test_write_when_its_version_was_committed_then_is_left_out(spark: SparkSession, tmp_path: Path) -> None:
    target = tmp_path / "target"
    frame = spark.range(3).coalesce(1).selectExpr("cast(id AS string) AS value")
    for version in (1, 1, 2, 1):
        save(frame, target, topic="t", partition=0, txnAppId="daily", txnVersion=version)
    assert [one.offset for one in LogDirectory(target).partition(("t", 0)).records()] == list(range(6))


def test_write_when_in_a_thread_with_an_active_session_then_finds_the_data_source(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The remedy of docs/spark.md, "When it fails": Spark finds a data source in the active session of the thread."""
    target = tmp_path / "target"
    frame = spark.range(3).coalesce(1).selectExpr("cast(id AS string) AS value")

    def write(*, is_active: bool) -> None:
        if is_active:
            session: Any = spark
            session._jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(session._jsparkSession)
        save(frame, target, topic="t", partition=0)

    with (
        ThreadPoolExecutor(1) as threads,
        pytest.raises(Exception, match=r"\[DATA_SOURCE_NOT_FOUND\]"),
    ):
        threads.submit(write, is_active=False).result()
    with ThreadPoolExecutor(1) as threads:
        threads.submit(write, is_active=True).result()
    assert LogDirectory(target).partition(("t", 0)).end_offset == 3


@pytest.mark.parametrize("offsets", ["keep", "dense"])
def test_stream_when_started_again_then_each_batch_is_there_once(
    spark: SparkSession, tmp_path: Path, offsets: str
) -> None:
    source, target, checkpoint = (tmp_path / name for name in ("source", "target", "checkpoint"))

    def run(first: int) -> None:
        """A query over the files so far, and two more, a micro-batch each."""
        for number in (first, first + 1):
            frame = spark.range(number * 100, number * 100 + 100).coalesce(1)
            frame.selectExpr("cast(id AS string) AS value", "id AS offset").write.mode("append").parquet(
                str(source)
            )
        stream = spark.readStream.schema("value string, offset long").option("maxFilesPerTrigger", 1)
        writer = stream.parquet(str(source)).writeStream.format("kafkafmt").trigger(availableNow=True)
        writer = writer.option("checkpointLocation", str(checkpoint)).options(topic="t", partition=0)
        writer.option("offsets", offsets).start(str(target)).awaitTermination()

    run(0)
    last = max((checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    last.unlink()  # as if the query had been killed behind the sink's commit and in front of its own
    (checkpoint / "commits" / f".{last.name}.crc").unlink(missing_ok=True)
    run(2)
    log = LogDirectory(target).partition(("t", 0))
    assert [(one.offset, one.value) for one in log.records()] == [(n, b"%d" % n) for n in range(400)]
    assert len(log.segments()) == 4
    assert [name.partition("-stream-")[0] for name in content(target)] == [".kafkafmt", "t-0"]


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.parametrize("place", ["folder", "s3"])
def test_task_when_its_executor_is_killed_or_it_fails_then_its_retry_alone_counts(
    tmp_path: Path, place: str, s3: FileSystem, s3_options: dict[str, str]
) -> None:
    import pyspark

    kinds = ["raise", "kill"]
    target, options = str(tmp_path), {}
    if place == "s3":
        target, options = f"s3://{BUCKET}/{tmp_path.name}", s3_options
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "1000",
    }
    conf = [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
    job = [str(JOB), str(tmp_path), target, json.dumps(options), *kinds]
    found = subprocess.run(
        [str(submit), "--master", CLUSTER, *conf, *job],
        capture_output=True,
        text=True,
        timeout=500,
        env={
            **os.environ,
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
        },
        check=False,
    )
    assert found.stdout.splitlines() == [f"{kind} 1 40000 40000" for kind in kinds], found.stderr
    for kind in kinds:
        if place == "folder":
            assert content(tmp_path / kind) == ["t-0", "t-1", "t-2"]
        else:
            below = s3.get_file_info(FileSelector(f"{BUCKET}/{tmp_path.name}/{kind}"))
            assert sorted(one.base_name for one in below) == ["t-0", "t-1", "t-2"]
