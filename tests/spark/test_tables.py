"""`CREATE TABLE` and `CREATE TEMPORARY VIEW ... USING kafkafmt` in real Spark SQL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from cli.logs import write_log
from data.real_logs import LOGS, expected
from kafkafmt.spark import first_line
from kafkafmt.spark.data_source import KafkafmtDataSource
from spark.reads import offsets, options_of

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.xdist_group("spark")]


@pytest.fixture
def catalog(spark: SparkSession, tmp_path: Path) -> Iterator[SparkSession]:
    """A session with a database of its own, whose folder is this test's."""
    spark.sql(f"CREATE DATABASE tables LOCATION '{tmp_path / 'warehouse'}'")
    spark.catalog.setCurrentDatabase("tables")
    yield spark
    spark.catalog.setCurrentDatabase("default")
    spark.sql("DROP DATABASE tables CASCADE")


def failure(spark: SparkSession, statement: str) -> str:
    with pytest.raises(Exception, match=r".") as caught:
        spark.sql(statement).collect()
    return first_line(caught.value)


def test_table_when_made_with_options_then_reads_what_they_name(catalog: SparkSession) -> None:
    catalog.sql(
        f"CREATE TABLE logs USING kafkafmt OPTIONS (path '{LOGS}', topics 'partitions,zstd', splitBytes '1m') "
        "COMMENT 'of a backup' TBLPROPERTIES ('made.by' = 'nobody')"
    )
    found = {
        row.topic: row.n
        for row in catalog.sql("SELECT topic, count(*) AS n FROM logs GROUP BY topic").collect()
    }
    partitions = sum(len(expected(f"partitions-{number}")) for number in range(3))
    assert found == {"partitions": partitions, "zstd": len(expected("zstd-0"))}
    assert catalog.read.option("topics", "zstd").table("logs").count() == found["zstd"]
    assert failure(catalog, "SELECT * FROM logs WITH (topics = 'nine')").startswith("no topic 'nine' in ")


def test_table_when_made_by_location_then_streams_and_batches_read_it(
    catalog: SparkSession, tmp_path: Path
) -> None:
    catalog.sql(f"CREATE TABLE batches USING kafkafmt OPTIONS (unit 'batches') LOCATION '{LOGS / 'gzip-0'}'")
    batches = catalog.sql("SELECT sum(count) AS n FROM batches WHERE magic = 2").head()
    assert batches is not None
    assert batches.n == len(expected("gzip-0"))
    query = (
        catalog.readStream.table("batches")
        .writeStream.format("kafkafmt")
        .trigger(availableNow=True)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start(str(tmp_path / "copy"))
    )
    query.awaitTermination()
    assert offsets(tmp_path / "copy") == offsets(LOGS / "gzip-0")


def test_table_when_made_of_rows_of_another_then_does_not_read_that(
    catalog: SparkSession, tmp_path: Path
) -> None:
    catalog.sql(f"CREATE TABLE logs USING kafkafmt OPTIONS (path '{LOGS}', topics 'zstd')")
    rows = catalog.table("logs").where("offset < 10")
    rows.write.format("kafkafmt").mode("append").option("path", str(tmp_path / "kept")).saveAsTable("kept")
    assert offsets(tmp_path / "kept") == [one.offset for one in expected("zstd-0") if one.offset < 10]
    assert failure(catalog, "SELECT * FROM kept").startswith(
        "no options: this table was made of rows of another"
    )


def test_table_when_inserted_into_then_is_refused_and_a_view_takes_it(
    catalog: SparkSession, tmp_path: Path
) -> None:
    write_log(tmp_path / "logs" / "orders-0")
    options = f"OPTIONS (path '{tmp_path / 'logs'}')"
    catalog.sql(f"CREATE TABLE logs USING kafkafmt {options}")
    before = offsets(tmp_path / "logs")
    for into in ("INTO", "OVERWRITE"):
        line = failure(catalog, f"INSERT {into} logs SELECT * FROM logs")
        assert line.startswith("no path: expected a log directory")
    assert offsets(tmp_path / "logs") == before
    columns = "(value binary, topic string, partition int)"
    catalog.sql(f"CREATE OR REPLACE TEMPORARY VIEW sink {columns} USING kafkafmt {options}")
    catalog.sql("INSERT INTO sink VALUES (X'00', 'orders', 0), (X'01', 'orders', 0)")
    assert offsets(tmp_path / "logs") == [*before, before[-1] + 1, before[-1] + 2]


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ("path '/x', topic 't'", "options topic and partition: expected both or neither"),
        ("path '/x', owners 'me'", "unknown option 'owners'"),
        (
            "topics 't'",
            "no path: expected log directories, segment files or globs, as load(path) or load([path])",
        ),
        ("path '/x', secret_key 's'", "option secret_key: a table of the catalog keeps no credentials"),
        (
            "paths '[\"s3://key:secret@bucket/x\"]'",
            "option paths: a table of the catalog keeps no credentials",
        ),
        (
            "path '/x', columns 'value'",
            "columns: a table of the catalog needs one of offset, timestamp, timestampType",
        ),
    ],
)
def test_table_when_its_options_cannot_be_then_is_not_made(
    catalog: SparkSession, options: str, line: str
) -> None:
    assert failure(catalog, f"CREATE TABLE logs USING kafkafmt OPTIONS ({options})").startswith(line)
    assert not catalog.catalog.tableExists("logs")


def test_table_of_brokers_when_its_options_have_a_password_then_is_not_made(catalog: SparkSession) -> None:
    login = "`kafka.security.protocol` 'SASL_SSL', `kafka.sasl.mechanism` 'PLAIN', `kafka.sasl.plain.username` 'me'"
    options = (
        f"`kafka.bootstrap.servers` 'a:9092', subscribe 't', {login}, `kafka.sasl.plain.password` 'secret'"
    )
    line = failure(catalog, f"CREATE TABLE sent USING kafkafmt.kafka OPTIONS ({options})")
    assert line.startswith("option kafka.sasl.plain.password: a table of the catalog keeps no credentials")
    assert not catalog.catalog.tableExists("sent")


def test_options_when_spark_tells_those_of_a_table_then_the_catalog_s_are_no_options() -> None:
    of_hive = {"serialization.format": "1", "option.serialization.format": "1"}
    given = options_of(
        LOGS, location=f"file:{LOGS}", owner="me", provider="kafkafmt", topics="zstd", **of_hive
    )
    schema = KafkafmtDataSource({**given, "option.topics": "zstd", "external": "true"}).schema()
    assert not isinstance(schema, str)
    assert schema.names[:3] == ["key", "value", "topic"]
