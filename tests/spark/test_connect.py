"""The data sources, the functions and the jobs with Spark Connect, whose sessions have no JVM and no context."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import kafkafmt.spark as kafkafmt_spark
from broker.batches import RECORDS, batch, send
from cli.logs import content, json_lines, run, write_log
from data.real_logs import LOGS
from kafkafmt import FileRecords, scan
from kafkafmt.spark import first_line
from spark.connect import connect_server, connect_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from broker.broker import Broker

pytestmark = [pytest.mark.full, pytest.mark.spark, pytest.mark.xdist_group("connect")]

ZSTD = LOGS / "zstd-0"
KAFKA = "kafkafmt.kafka"


@pytest.fixture(scope="module")
def connect(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session that was registered, and ships kafkafmt as it would to any server."""
    with (
        connect_server(tmp_path_factory.mktemp("connect")) as address,
        connect_session(address) as session,
    ):
        kafkafmt_spark.register(session)
        yield session


def records_in(log: Path) -> int:
    return sum(1 for path in log.glob("*.log") for _ in FileRecords(path).records())


def test_log_when_read_and_written_then_has_its_records(connect: SparkSession, tmp_path: Path) -> None:
    frame = connect.read.format("kafkafmt").load(str(ZSTD))
    assert frame.count() == records_in(ZSTD)
    frame.write.format("kafkafmt").mode("append").save(str(tmp_path / "written"))
    assert records_in(tmp_path / "written" / "zstd-0") == records_in(ZSTD)


def test_functions_when_applied_then_are_those_of_the_executors(connect: SparkSession) -> None:
    from kafkafmt.spark import functions as kf

    batches = connect.read.format("kafkafmt").option("unit", "batches").load(str(ZSTD))
    decoded = (
        batches.where(kf.is_valid("batch")).selectExpr("batch").select(kf.decode("batch").alias("records"))
    )
    (row,) = decoded.selectExpr("sum(size(records)) AS records").collect()
    assert row.records == records_in(ZSTD)


@pytest.mark.broker
def test_topics_when_read_and_sent_then_have_their_records(
    connect: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    """Records and batches, in batch reads, streams and SQL."""
    broker.create_topic("connect", 2)
    broker.create_topic("connect-copy", 2)
    send(broker, "connect", range(8), 2)
    options = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": "connect"}
    records = connect.read.format(KAFKA).options(**options)
    assert records.load().count() == 8 * RECORDS
    batches = records.option("unit", "batches").load().select("batch").orderBy("baseOffset", "partition")
    assert bytes(batches.first().batch)[61:] == batch(0)[61:]
    stream = connect.readStream.format(KAFKA).options(**options, startingOffsets="earliest").load()
    writer = stream.selectExpr("'connect-copy' AS topic", "partition", "key", "value").writeStream.format(
        KAFKA
    )
    writer = writer.option("kafka.bootstrap.servers", broker.bootstrap).trigger(availableNow=True)
    writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start().awaitTermination()
    servers = f"`kafka.bootstrap.servers` '{broker.bootstrap}'"
    for name in ("connect", "connect-copy"):
        view = name.replace("-", "_")
        given = f"OPTIONS ({servers}, subscribe '{name}')"
        connect.sql(f"CREATE TEMPORARY VIEW {view} USING `{KAFKA}` {given}").collect()
    same = "SELECT partition, offset, key, value FROM"
    assert connect.sql(f"{same} connect EXCEPT {same} connect_copy").count() == 0
    assert connect.table("connect_copy").count() == 8 * RECORDS


def test_table_when_made_by_sql_then_has_the_records(connect: SparkSession) -> None:
    connect.sql(f"CREATE TABLE zstd USING kafkafmt OPTIONS (path '{ZSTD}')").collect()
    try:
        assert connect.sql("SELECT * FROM zstd").count() == records_in(ZSTD)
    finally:
        connect.sql("DROP TABLE zstd").collect()


def test_jobs_when_run_then_do_what_the_commands_do(connect: SparkSession, tmp_path: Path) -> None:
    checks = [row.asDict(recursive=True) for row in kafkafmt_spark.verify(connect, LOGS).collect()]
    assert checks == json_lines(run("verify", LOGS, "--json").stdout)
    found = [row.asDict(recursive=True) for row in kafkafmt_spark.summarize(connect, LOGS).collect()]
    assert found == json_lines(run("inspect", "--summary", LOGS, "--json").stdout)
    kafkafmt_spark.convert(connect, LOGS, tmp_path / "converted", codec="lz4")
    run("convert", LOGS, tmp_path / "locally", "--codec", "lz4")
    assert content(tmp_path / "converted") == content(tmp_path / "locally")
    erased = kafkafmt_spark.erase(connect, LOGS, tmp_path / "erased", keys=[b"customer-15"])
    assert sum(row.records_erased for row in erased.collect()) > 0


def test_export_when_run_then_has_the_records(connect: SparkSession, tmp_path: Path) -> None:
    write_log(tmp_path / "logs" / "orders-0")
    reports = kafkafmt_spark.export(connect, scan(tmp_path / "logs"), str(tmp_path / "lake"))
    (row,) = reports.collect()
    assert (row.status, row.error) == ("exported", None)
    assert row.records == records_in(tmp_path / "logs" / "orders-0")
    assert connect.read.parquet(str(tmp_path / "lake" / "orders")).count() == row.records


def test_errors_when_raised_then_are_one_line(connect: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(Exception, match="did you mean 'unit'") as caught:
        connect.read.format("kafkafmt").option("unitt", "records").load(str(ZSTD)).count()
    assert first_line(caught.value) == "unknown option 'unitt': did you mean 'unit'?"
    with pytest.raises(FileNotFoundError, match="no such file or folder"):
        kafkafmt_spark.verify(connect, tmp_path / "missing")
    frame = connect.createDataFrame([(b"no batch", "orders", 0)], "batch binary, topic string, partition int")
    with pytest.raises(Exception, match="whole batches") as caught:
        frame.write.format("kafkafmt").mode("append").save(str(tmp_path / "written"))
    assert "\n" not in first_line(caught.value)
    assert "orders-0" in first_line(caught.value)
