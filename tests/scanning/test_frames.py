"""Scans in pandas, Polars and DuckDB: the rows of the scan, and no bytes that the query excludes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kafkafmt as kf
from data.real_logs import LOGS
from file_systems import CountingHandler, far
from kafkafmt.columns.read import COLUMNS
from kafkafmt.log import PartitionLogWriter
from log.samples import DAY, batch, put_segment

START = datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(milliseconds=DAY)
SEGMENT_BYTES, SEGMENTS = 256 * 1024, 8
COUNT = 2000  # records of a partition, of 1 KiB
PARTITION_BYTES = SEGMENT_BYTES * SEGMENTS
# Planning reads indexes, and the ends of the logs.
PLANNED_BYTES = 300 * 1024


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("logs")
    for name in ("orders-0", "orders-1", "users-0"):
        with PartitionLogWriter(folder / name, segment_bytes=SEGMENT_BYTES) as writer:
            for first in range(0, COUNT, 20):
                writer.append(batch(first, 20, size=1024))
    return folder


class Counted:
    """A scan of a store, and the bytes that are read of the store."""

    def __init__(self, folder: Path) -> None:
        self.handler = CountingHandler()
        self.scan = kf.scan(far(self.handler, folder), batch_bytes=64 * 1024)

    def bytes_of(self, run: Callable[[kf.Scan], Any]) -> tuple[Any, int]:
        self.handler.reads.clear()
        return run(self.scan), sum(size for _, size in self.handler.reads)


@pytest.fixture
def counted(folder: Path) -> Counted:
    return Counted(folder)


def test_scan_when_read_whole_then_reads_all_bytes_once(counted: Counted, folder: Path) -> None:
    stored = sum(path.stat().st_size for path in folder.glob("*/*.log"))
    table, found = counted.bytes_of(lambda scan: scan.to_arrow())
    assert table.num_rows == 3 * COUNT
    assert stored <= found <= stored + PLANNED_BYTES


QUERIES: list[tuple[str, pl.Expr, str, int]] = [
    ("a topic", pl.col("topic") == "users", "topic = 'users'", PARTITION_BYTES),
    ("a partition", pl.col("partition").is_in([1, 7]), "partition IN (1, 7)", PARTITION_BYTES),
    (
        "offsets",
        pl.col("offset").is_between(700, 719) & (pl.col("topic") == "orders"),
        "\"offset\" BETWEEN 700 AND 719 AND topic = 'orders'",
        2 * 64 * 1024,
    ),
    ("the last offsets", pl.col("offset") >= COUNT - 40, f'"offset" >= {COUNT - 40}', 3 * 128 * 1024),
    (
        "times",
        (pl.col("timestamp") >= START + timedelta(milliseconds=COUNT - 100)) & (pl.col("topic") == "users"),
        f"timestamp >= '{START + timedelta(milliseconds=COUNT - 100)}'::TIMESTAMPTZ AND topic = 'users'",
        2 * 128 * 1024,
    ),
    ("no offset", pl.col("offset") > COUNT, f'"offset" > {COUNT}', 0),
    (
        "two partitions",
        (pl.col("topic") == "users") & (pl.col("partition") == 1),
        "topic = 'users' AND partition = 1",
        0,
    ),
]


@pytest.mark.parametrize(
    ("predicate", "sql", "most"), [query[1:] for query in QUERIES], ids=[one[0] for one in QUERIES]
)
def test_predicate_when_given_by_a_query_then_bytes_that_it_excludes_are_not_read(
    counted: Counted, folder: Path, predicate: pl.Expr, sql: str, most: int
) -> None:
    wanted = pl.from_arrow(kf.scan(folder).to_arrow()).filter(predicate)
    counted.scan.ranges()  # which reads the ends of the logs
    frame, found = counted.bytes_of(lambda scan: scan.to_polars().filter(predicate).collect())
    assert frame.equals(wanted)
    assert len(wanted) * 1024 <= found <= most + PLANNED_BYTES

    def by_sql(scan: kf.Scan) -> pa.Table:
        rows = scan.to_dataset()  # noqa: F841
        return duckdb.sql(f"FROM rows WHERE {sql}").to_arrow_table()

    table, found = counted.bytes_of(by_sql)
    # DuckDB gives timestamps the time zone of its session.
    rows = pl.from_arrow(table).with_columns(pl.col("timestamp").dt.convert_time_zone("UTC"))
    order = ["topic", "partition", "offset"]
    assert rows.sort(order).equals(wanted.sort(order))
    assert found <= most + PLANNED_BYTES


def test_limit_when_given_by_a_query_then_the_rest_is_not_read(counted: Counted) -> None:
    frame, found = counted.bytes_of(lambda scan: scan.to_polars().head(5).collect())
    assert frame["offset"].to_list() == [0, 1, 2, 3, 4]
    assert found < PARTITION_BYTES // 2 + PLANNED_BYTES


def test_columns_when_a_query_needs_few_then_the_others_are_not_materialised(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    read = kf.Scan.to_batches

    def noted(scan: kf.Scan, columns: Any = None) -> Any:
        asked.append(columns)
        return read(scan, columns)

    monkeypatch.setattr(kf.Scan, "to_batches", noted)
    scan = kf.scan(folder)
    rows = scan.to_dataset()  # noqa: F841
    assert scan.to_polars().filter(pl.col("partition") == 0).select("offset").collect().width == 1
    assert duckdb.sql('SELECT max("offset") FROM rows WHERE partition = 0').fetchall() == [(COUNT - 1,)]
    assert [sorted(one) for one in asked] == [["offset", "partition"]] * 2


def test_batch_size_when_polars_asks_for_one_then_frames_have_it(folder: Path) -> None:
    from kafkafmt.scanning.polars_source import _frames

    frames = list(_frames(kf.scan(folder, topics="users"), ["offset"], None, 105, 20))
    assert [len(frame) for frame in frames[:-1]] == [20] * (len(frames) - 1)
    assert pl.concat(frames)["offset"].to_list() == list(range(105))


COLUMN = {name: pl.col(name) for name in COLUMNS}
VALUES = st.integers(-2, 260)
TOPICS = ["gzip", "partitions", "segments", "none", "zstd"]
TIMES = st.integers(0, 60_000).map(lambda ms: START + timedelta(microseconds=ms * 333))
COMPARISONS = [pl.Expr.lt, pl.Expr.le, pl.Expr.gt, pl.Expr.ge, pl.Expr.eq, pl.Expr.ne]
LEAVES = st.one_of(
    st.builds(lambda compare, value: compare(COLUMN["offset"], value), st.sampled_from(COMPARISONS), VALUES),
    st.builds(lambda low, high: COLUMN["offset"].is_between(low, high, closed="left"), VALUES, VALUES),
    st.builds(lambda values: COLUMN["offset"].is_in(values), st.lists(VALUES, min_size=1)),
    st.builds(lambda compare, time: compare(COLUMN["timestamp"], time), st.sampled_from(COMPARISONS), TIMES),
    st.builds(lambda topic: COLUMN["topic"] == topic, st.sampled_from(TOPICS)),
    st.builds(lambda numbers: COLUMN["partition"].is_in(numbers), st.lists(st.integers(0, 3), min_size=1)),
    st.just(COLUMN["key"].is_null()),
    st.just(COLUMN["value"].bin.size() > 100),
)
PREDICATES = st.recursive(
    LEAVES,
    lambda some: st.one_of(
        st.builds(lambda a, b: a & b, some, some),
        st.builds(lambda a, b: a | b, some, some),
        some.map(lambda a: ~a),
    ),
    max_leaves=4,
)
REAL = kf.scan(LOGS, topics=TOPICS)
REAL_ROWS = pl.from_arrow(REAL.to_arrow())


@settings(max_examples=60, deadline=None)
@given(predicate=PREDICATES, columns=st.permutations(REAL_ROWS.columns).map(lambda names: names[:3]))
def test_polars_when_any_predicate_is_given_then_has_the_rows_that_match(
    predicate: pl.Expr, columns: list[str]
) -> None:
    found = REAL.to_polars().filter(predicate).select(columns).collect()
    assert found.equals(REAL_ROWS.filter(predicate).select(columns))


@pytest.mark.parametrize(
    ("predicate", "sql", "offsets"),
    [
        (pl.col("timestamp").is_null(), "timestamp IS NULL", []),
        (pl.col("timestamp").is_not_null(), "timestamp IS NOT NULL", [0, 1, 2, 3, 4, 5]),
        (
            pl.col("timestamp").is_null() | (pl.col("timestamp") > START),
            f"timestamp IS NULL OR timestamp > '{START}'::TIMESTAMPTZ",
            [2, 4],
        ),
        (~(pl.col("timestamp") > START), f"NOT timestamp > '{START}'::TIMESTAMPTZ", [0, 1, 3, 5]),
        (pl.col("timestamp") != START, f"timestamp <> '{START}'::TIMESTAMPTZ", [0, 2, 3, 4, 5]),
        (
            pl.col("timestamp").is_in([None, START], nulls_equal=True),
            f"timestamp IS NOT DISTINCT FROM '{START}'::TIMESTAMPTZ",
            [1],
        ),
        (
            pl.col("timestamp") > START.astimezone(timezone(timedelta(hours=9))),
            f"timestamp > '{START.astimezone(timezone(timedelta(hours=9)))}'::TIMESTAMPTZ",
            [2, 4],
        ),
        (
            pl.col("timestamp") < datetime(1970, 1, 1, tzinfo=timezone.utc),
            "timestamp < '1970-01-01 00:00:00+00'::TIMESTAMPTZ",
            [0, 3, 5],
        ),
        (pl.col("timestamp").dt.date() == START.date(), f"timestamp::DATE = '{START.date()}'", [1, 2, 4]),
        (pl.col("offset").cast(pl.Int8) > 3, '"offset"::TINYINT > 3', [4, 5]),
        (pl.col("offset") > 3.5, '"offset" > 3.5', [4, 5]),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_predicate_when_timestamps_do_not_ascend_then_has_the_rows_that_match(
    tmp_path: Path, predicate: pl.Expr, sql: str, offsets: list[int]
) -> None:
    """The timestamp -1, for none, is the last millisecond of 1969, as in Spark's Kafka source."""
    times = [-1, DAY, DAY + 5, -1, DAY + 1, -1]
    put_segment(tmp_path / "orders-0", 0, [batch(n, 1, timestamp=time) for n, time in enumerate(times)])
    scan = kf.scan(tmp_path, columns=["offset", "timestamp"])
    assert scan.to_polars().filter(predicate).collect()["offset"].to_list() == offsets
    rows = scan.to_dataset()  # noqa: F841
    duckdb.sql("SET timezone = 'UTC'")
    found = duckdb.sql(f'SELECT "offset" FROM rows WHERE {sql} ORDER BY 1').fetchall()
    assert found == [(offset,) for offset in offsets]


def test_polars_when_a_predicate_needs_all_rows_then_they_are_read(folder: Path) -> None:
    frame, rows = kf.scan(folder).to_polars(), pl.from_arrow(kf.scan(folder).to_arrow())
    for predicate in (
        pl.col("partition") == pl.col("partition").max(),
        pl.col("topic").is_first_distinct(),
        pl.col("offset") >= pl.col("offset").max(),
        pl.col("offset").cum_sum() < 3,
    ):
        assert frame.filter(predicate).collect().equals(rows.filter(predicate))


FIELD = {name: pc.field(name) for name in COLUMNS}
ARROW_COMPARISONS = ["__lt__", "__le__", "__gt__", "__ge__", "__eq__", "__ne__"]
ARROW_TIMES = TIMES.map(lambda time: pa.scalar(time, pa.timestamp("us", "UTC")))
ARROW_LEAVES = st.one_of(
    st.builds(
        lambda name, value: getattr(FIELD["offset"], name)(value), st.sampled_from(ARROW_COMPARISONS), VALUES
    ),
    st.builds(lambda values: FIELD["offset"].isin(values), st.lists(VALUES, min_size=1)),
    st.builds(
        lambda name, time: getattr(FIELD["timestamp"], name)(time),
        st.sampled_from(ARROW_COMPARISONS),
        ARROW_TIMES,
    ),
    st.builds(lambda topic: FIELD["topic"] == topic, st.sampled_from(TOPICS)),
    st.just(FIELD["key"].is_null()),
    st.just(pc.binary_length(FIELD["value"]) > 100),
)
FILTERS = st.recursive(
    ARROW_LEAVES,
    lambda some: st.one_of(
        st.builds(lambda a, b: a & b, some, some),
        st.builds(lambda a, b: a | b, some, some),
        some.map(lambda a: ~a),
    ),
    max_leaves=4,
)
REAL_TABLE = REAL.to_arrow()


@settings(max_examples=60, deadline=None)
@given(wanted=FILTERS, columns=st.permutations(REAL_ROWS.columns).map(lambda names: names[:3]))
def test_dataset_when_any_filter_is_given_then_has_the_rows_that_match(
    wanted: pc.Expression, columns: list[str]
) -> None:
    found = REAL.to_dataset().to_table(columns=columns, filter=wanted)
    assert found == REAL_TABLE.filter(wanted).select(columns)


def test_dataset_when_read_by_pyarrow_then_counts_computes_and_refuses_what_needs_files() -> None:
    rows = REAL.to_dataset()
    assert rows.count_rows() == len(REAL_ROWS)
    sizes = rows.to_table(columns={"size": pc.binary_length(FIELD["value"])}, filter=FIELD["offset"] == 3)
    assert sizes["size"].to_pylist() == [
        len(row["value"]) for row in REAL_ROWS.filter(pl.col("offset") == 3).iter_rows(named=True)
    ]
    with pytest.raises(kf.ScanError, match="no column 'ofset' in the scan"):
        rows.to_table(columns=["ofset"])
    for refused in (rows.get_fragments, rows.replace_schema, rows.filter):
        with pytest.raises(kf.ScanError, match="a scan has no"):
            refused()


def test_duckdb_when_it_names_a_scan_then_queries_its_rows() -> None:
    scan = kf.scan(LOGS / "partitions-*")  # noqa: F841
    found = duckdb.sql(
        'SELECT partition, count(*), max("offset") FROM scan GROUP BY ALL ORDER BY 1'
    ).fetchall()
    rows = pl.from_arrow(kf.scan(LOGS / "partitions-*").to_arrow())
    assert found == rows.group_by("partition").agg(pl.len(), pl.max("offset")).sort("partition").rows()


def test_to_pandas_when_called_then_has_the_rows_with_their_types() -> None:
    frame = REAL.to_pandas()
    assert len(frame) == len(REAL_ROWS)
    assert str(frame.dtypes["offset"]) == "int64"
    assert str(frame.dtypes["timestamp"].tz) == "UTC"
    assert frame["value"].tolist() == REAL_ROWS["value"].to_list()


@pytest.mark.parametrize("name", ["polars", "pandas"])
def test_frame_when_the_library_is_not_installed_then_one_line_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    put_segment(tmp_path / "orders-0", 0, [batch(0, 1)])
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(kf.ScanError, match=f"^to_{name} needs {name}: pip install {name}$"):
        getattr(kf.scan(tmp_path), f"to_{name}")()
