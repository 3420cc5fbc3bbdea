"""`spark.read.format("kafkafmt")` on a real local Spark; test_reading.py has the cases that need no JVM."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

import kafkafmt as kf
from cli.logs import flip, segments, write_log
from data.real_logs import LOGS, NAMES, expected
from kafkafmt.spark import first_line
from log.samples import put_segment
from spark.reads import rows

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]

Read = Callable[..., DataFrame]


@pytest.fixture
def read(spark: SparkSession) -> Read:
    def load(path: Path | str | list[str], **options: object) -> DataFrame:
        paths = path if isinstance(path, list) else str(path)
        return spark.read.format("kafkafmt").options(**options).load(paths)

    return load


def arrow_rows(frame: DataFrame) -> list[dict[str, Any]]:
    table: pa.Table = frame.toArrow()
    return table.to_pylist()


def in_order(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(found, key=lambda row: (row["topic"], row["partition"], row["offset"]))


@pytest.mark.parametrize("split_bytes", ["128m", "100k"])
@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
def test_real_logs_when_read_by_spark_then_rows_are_all_there_once(
    read: Read, isolation: str, split_bytes: str
) -> None:
    options = {"isolation": isolation, "includeHeaders": "true"}
    frame = read(LOGS, splitBytes=split_bytes, **options)
    assert frame.rdd.getNumPartitions() == 1 if split_bytes == "128m" else frame.rdd.getNumPartitions() > 8
    found = in_order(arrow_rows(frame))
    assert found == in_order(rows(LOGS, **options))
    wanted = {name: [one for one in expected(name) if one.committed or "un" in isolation] for name in NAMES}
    assert frame.count() == sum(map(len, wanted.values()))
    values = {(row["topic"], row["partition"], row["offset"]): row["value"] for row in found}
    for name, records in wanted.items():
        topic, _, partition = name.rpartition("-")
        assert [values[topic, int(partition), one.offset] for one in records] == [
            one.value for one in records
        ]


def test_segments_when_read_then_are_what_the_library_reads(read: Read) -> None:
    for path in segments(LOGS / "segments-0"):
        with kf.FileRecords(path) as records:
            table = records.to_arrow(["key", "value", "offset"])
        assert arrow_rows(read(path, columns="key,value,offset")) == table.to_pylist()


def test_schema_of_the_user_when_given_then_is_the_frame_s(spark: SparkSession) -> None:
    reader = spark.read.format("kafkafmt").schema("offset bigint, VALUE binary")
    frame = reader.load(str(LOGS / "none-0"))
    assert frame.columns == ["offset", "VALUE"]
    assert [row.offset for row in frame.collect()] == [one.offset for one in expected("none-0")]


def test_paths_when_several_or_in_sql_then_are_read(read: Read, spark: SparkSession) -> None:
    both = [str(LOGS / "zstd-0"), str(LOGS / "gzip-0")]
    found = {row.topic: row["count"] for row in read(both).groupBy("topic").count().collect()}
    assert found == {"zstd": len(expected("zstd-0")), "gzip": len(expected("gzip-0"))}
    path = LOGS / "gzip-0"
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW gzip USING kafkafmt OPTIONS (path '{path}', columns 'offset')"
    )
    assert spark.sql("SELECT count(*) AS n FROM gzip").head() == (len(expected("gzip-0")),)


def test_batches_when_read_by_spark_then_are_the_segments(read: Read) -> None:
    frame = read(LOGS, unit="batches").where("codec = 'lz4' AND magic = 2")
    found = arrow_rows(frame.select("file", "position", "size", "batch"))
    assert len(found) > 10
    for row in found:
        data = Path(row["file"]).read_bytes()
        assert row["batch"] == data[row["position"] : row["position"] + row["size"]]


def test_filters_when_spark_would_push_them_then_each_query_has_its_own_rows(
    read: Read, spark: SparkSession
) -> None:
    key = "spark.sql.python.filterPushdown.enabled"
    spark.conf.set(key, "true")
    try:
        frame = read(LOGS / "partitions-*")
        wanted = sum(len(expected(f"partitions-{number}")) for number in range(3))
        one, other = frame.where("partition = 1"), frame.where("partition IN (2) AND offset >= 5")
        first, second = len(expected("partitions-1")), len(expected("partitions-2")) - 5
        assert one.union(other).count() == first + second
        assert frame.count() == wanted
    finally:
        spark.conf.unset(key)


def test_range_when_empty_then_the_frame_is(read: Read, tmp_path: Path) -> None:
    log = write_log(tmp_path / "orders-0")
    assert read(log, startingTimestamp=2**42).collect() == []


def test_damage_when_met_then_is_one_line_in_the_driver(read: Read, tmp_path: Path) -> None:
    log = write_log(tmp_path / "orders-0")
    path = segments(log)[0]
    second = list(kf.FileRecords(path).batches())[1]
    flip(path, second.position + 70)
    with pytest.raises(Exception, match="CRC mismatch") as caught:
        read(log).collect()
    line = first_line(caught.value)
    assert line.startswith(f"{path}: CRC mismatch")
    assert line.endswith(f"(batch at position {second.position}, offsets 10 to 19)")
    with pytest.raises(Exception, match="CRC mismatch") as caught:
        read(log).write.format("noop").mode("overwrite").save()
    assert first_line(caught.value) == line
    assert read(log, onCorrupt="skip").count() == 110
    (kept,) = read(log, unit="batches", onCorrupt="keep").where("damage IS NOT NULL").collect()
    assert (kept.position, kept.size, kept.baseOffset) == (second.position, second.size_in_bytes, 10)


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("empty", "{path}: no segments in this folder"),
        ("notes.txt", "{path}: expected a name of 20 digits and .log, a segment's"),
        (
            "text-0",
            "{path}/00000000000000000000.log: unknown magic: expected 0, 1 or 2, found 32, at byte 16 of the batch "
            "(batch at position 0)",
        ),
        (
            "short-0",
            "{path}/00000000000000000000.log: expected a whole batch in the last 3 bytes, found a part of one "
            "(batch at position 0)",
        ),
    ],
)
def test_path_when_it_holds_no_log_then_is_one_line_in_the_driver(
    read: Read, tmp_path: Path, path: str, line: str
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.txt").write_text("no log")
    put_segment(tmp_path / "text-0", 0, [b"There is much to read, but no record. " * 20])
    put_segment(tmp_path / "short-0", 0, [b"log"])
    put_segment(tmp_path / "short-0", 1, [])
    where = str(tmp_path / path)
    with pytest.raises(Exception, match=r"PYTHON_DATA_SOURCE_ERROR|Python worker") as caught:
        read(where).collect()
    assert first_line(caught.value) == line.format(path=where)


@pytest.mark.parametrize(
    ("path", "options", "line"),
    [
        ("none-0", {"unti": "batches"}, "unknown option 'unti': did you mean 'unit'?"),
        ("none-0", {"columns": "value,ofset"}, "unknown column 'ofset': did you mean 'offset'?"),
        ("", {}, "no path: expected log directories, segment files or globs, as load(path) or load([path])"),
        ("no-such-0", {}, "{path}: no such file or folder"),
        ("none-0", {"topics": "nine"}, "no topic 'nine' in {path}: found none"),
        (
            "none-0",
            {"startingOffsets": json.dumps({"none": {"0": 5000}})},
            "partition none-0: startingOffsets 5000 is outside the log: the log has 0 to {end} ({path})",
        ),
    ],
)
def test_bad_input_when_given_then_is_one_line_in_the_driver(
    read: Read, path: str, options: dict[str, str], line: str
) -> None:
    where = str(LOGS / path) if path else ""
    with pytest.raises(Exception, match="PYTHON_DATA_SOURCE_ERROR") as caught:
        read(where, **options).collect()
    end = expected("none-0")[-1].offset + 1
    assert first_line(caught.value) == line.format(path=where, end=end)
    # The trace that Spark shows has a frame or two of this library, and ends in that line.
    assert str(caught.value).partition("JVM stacktrace")[0].count("kafkafmt/spark") <= 3


def test_format_when_not_registered_then_the_line_says_so(spark: SparkSession) -> None:
    """As the page has it: Spark's own line, and no class of the JVM that was looked for."""
    session = spark.newSession()
    wanted = "[DATA_SOURCE_NOT_FOUND] Failed to find the data source: kafkafmt."
    attempts: list[Callable[[], object]] = [
        lambda: session.read.format("kafkafmt").load(str(LOGS)),
        lambda: session.readStream.format("kafkafmt").load(str(LOGS)),
        lambda: session.sql(f"CREATE TABLE t USING kafkafmt OPTIONS (path '{LOGS}')"),
    ]
    for attempt in attempts:
        with pytest.raises(Exception, match="DATA_SOURCE_NOT_FOUND") as caught:
            attempt()
        assert first_line(caught.value).startswith(wanted)
