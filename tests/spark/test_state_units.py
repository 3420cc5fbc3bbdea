"""`unit=offsets` and `unit=transactions`: the rows of the command line, with Spark's names and types."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from cli.logs import flip
from internal_topics.metadata_logs import CLUSTER
from kafkafmt.errors import CorruptRecordError
from kafkafmt.log import cluster_metadata, consumer_offsets, transactions
from kafkafmt.log.internal_topics.sources import LogSources
from kafkafmt.spark.data_source import KafkafmtDataSource
from kafkafmt.spark.source.options import ReadOptions, StreamOptions
from log.coordinators import FOLDER, OFFSETS, copied, offset_commit, write_log
from log.samples import DAY, name
from spark.reads import options_of, rows

LOGS = FOLDER / "4.x"


def moment(milliseconds: int | None) -> datetime | None:
    return None if milliseconds is None else datetime.fromtimestamp(milliseconds / 1000, timezone.utc)


def test_offsets_when_read_then_are_the_rows_of_the_command() -> None:
    sources = LogSources(LOGS)
    found = consumer_offsets(sources)
    expected = list(found.offset_rows(sources.end_offsets(found.topic_partitions())))
    given = rows(LOGS, unit="offsets")
    assert [list(row.values())[:10] for row in given] == [list(row.values())[:10] for row in expected]
    assert [row["commitTimestamp"] for row in given] == [
        moment(row["commit_timestamp_ms"]) for row in expected
    ]
    assert list(given[0])[:6] == ["groupId", "groupType", "state", "topic", "partition", "committedOffset"]


def test_transactions_when_read_then_are_the_rows_of_the_command() -> None:
    expected = list(transactions(LOGS).rows())
    given = rows(LOGS, unit="transactions")
    assert [row["transactionalId"] for row in given] == [row["transactional_id"] for row in expected]
    assert [row["openMs"] for row in given] == [row["open_ms"] for row in expected]
    assert [row["startTimestamp"] for row in given] == [moment(row["start_timestamp_ms"]) for row in expected]


def test_columns_when_selected_then_are_the_only_ones() -> None:
    given = rows(LOGS, unit="offsets", columns="groupId,lag")
    assert all(list(row) == ["groupId", "lag"] for row in given)


def test_state_when_bound_by_a_time_then_is_that_of_then(tmp_path: Path) -> None:
    write_log(tmp_path / OFFSETS, [[offset_commit("a", 1)], [offset_commit("a", 2)]])
    for end, offset in ((DAY, 1), (DAY + 1, 2)):
        (row,) = rows(tmp_path, unit="offsets", endingTimestamp=end)
        assert row["committedOffset"] == offset
    (late,) = {
        row["isHanging"] for row in rows(LOGS, unit="transactions", endingTimestamp=2**42) if row["topic"]
    }
    assert late


def test_damage_when_met_then_fails_or_is_skipped(tmp_path: Path) -> None:
    folder = copied("3.9", tmp_path)
    flip(folder / OFFSETS / name(0), 100)
    with pytest.raises(CorruptRecordError, match=f"{OFFSETS} at offset 0"):
        rows(folder, unit="offsets")
    assert rows(folder, unit="offsets", onCorrupt="skip")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"isolation": "read_committed"}, "option isolation: unit=offsets does not take it"),
        ({"topics": "*"}, "option topics: unit=offsets does not take it"),
        ({"onCorrupt": "keep"}, "onCorrupt: keep needs unit=batches"),
        ({"unit": "metadata", "onCorrupt": "skip"}, "unit=metadata needs all records of the log"),
        ({"columns": "grupId"}, "did you mean 'groupId'"),
    ],
)
def test_options_when_they_have_no_effect_then_are_refused(options: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        KafkafmtDataSource(options_of(LOGS, **{"unit": "offsets", **options})).schema()


def test_stream_when_its_unit_is_a_state_then_is_refused() -> None:
    with pytest.raises(ValueError, match="unit=transactions: a stream cannot read a state"):
        StreamOptions.parse(options_of(LOGS, unit="transactions"))


def test_path_when_it_has_no_such_topic_then_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    with pytest.raises(FileNotFoundError, match="no partition of __consumer_offsets"):
        rows(tmp_path / "logs", unit="offsets")
    assert ReadOptions.parse(options_of(tmp_path, unit="offsets")).unit == "offsets"


@pytest.mark.spark
@pytest.mark.full
@pytest.mark.xdist_group("spark")
def test_units_when_read_by_spark_then_are_queried_as_tables(spark: SparkSession) -> None:
    def load(unit: str) -> Any:
        return spark.read.format("kafkafmt").option("unit", unit).load(str(LOGS))

    lags = load("offsets").where("pendingProducerId is null").groupBy("groupId").sum("lag").collect()
    assert {row[0]: row[1] for row in lags}["classic"] == 20
    assert load("transactions").where("isHanging").count() == 0


def test_metadata_when_read_then_is_a_row_for_each_entity_with_the_columns_of_all_kinds() -> None:
    expected = list(cluster_metadata(CLUSTER).rows())
    given = rows(CLUSTER, unit="metadata")
    assert [(row["kind"], row["name"]) for row in given] == [(row["kind"], row["name"]) for row in expected]
    (orders,) = (row for row in given if row["name"] == "orders-6")
    assert (orders["topic"], orders["partition"], orders["replicas"]) == ("orders", 6, [1])
    limits = {row["name"]: (dict(row["entity"]), row["limit"]) for row in given if row["kind"] == "quota"}
    assert limits["request_percentage"] == ({"user": "alice", "client-id": "<default>"}, 12.5)


def test_metadata_when_bound_by_a_time_then_is_that_of_then() -> None:
    assert rows(CLUSTER, unit="metadata", columns="kind", endingTimestamp=1)[0] == {"kind": "cluster"}
    assert len(rows(CLUSTER, unit="metadata", endingTimestamp=1)) == 1


@pytest.mark.spark
@pytest.mark.full
@pytest.mark.xdist_group("spark")
def test_metadata_when_read_by_spark_then_has_typed_columns(spark: SparkSession) -> None:
    frame = spark.read.format("kafkafmt").option("unit", "metadata").load(str(CLUSTER))
    found = frame.where("kind = 'partition'").groupBy("topic").count().orderBy("topic").collect()
    assert [tuple(row) for row in found] == [("grown", 5), ("orders", 7), ("plain", 1)]
    types = dict(frame.dtypes)
    assert types["replicas"] == "array<int>"
    assert types["entity"] == "map<string,string>"
    assert types["lastTimestamp"] == "timestamp"
