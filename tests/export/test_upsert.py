"""Mode upsert: tables as a dictionary of the latest values, whatever the order of runs, partitions and tombstones."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import kafkafmt
from export.kills import preload, run_until_step
from export.scans import COLUMNS, folder_scan
from export.test_iceberg import destination_of, table_of
from kafkafmt import Codec, RecordBatchBuilder
from kafkafmt.export.errors import ExportError
from kafkafmt.export.layout import WriteOptions
from kafkafmt.export.partitioning import parse_partitioning
from kafkafmt.export.plan import ExportOptions, plan_table
from kafkafmt.export.running import run_export
from kafkafmt.export.tables import Destination
from kafkafmt.export.upsert import _large

KINDS = ["delta", "iceberg"]
STEPS_IN = ("/kafkafmt/export/", "/pyiceberg/", "/deltalake/")
HOUR_MS = 3_600_000
START_MS = 1_767_225_600_000


def write(folder: Path, first: int, records: list[tuple[int, bytes | None, bytes | None]]) -> None:
    """Add a segment. Records are timestamps, keys and values."""
    builder = RecordBatchBuilder(codec=Codec.ZSTD, base_offset=first)
    for timestamp, key, value in records:
        builder.append(START_MS + timestamp, key, value)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{first:020}.log").write_bytes(builder.build())


def destination(lake: Path, kind: str, **more: Any) -> Destination:
    return destination_of(lake, **more) if kind == "iceberg" else Destination(str(lake), kind, **more)


def upsert(source: Path, lake: Path, kind: str, partition_by: str = "") -> None:
    fields = parse_partitioning(partition_by) if partition_by else ()
    for report in run_export(
        folder_scan(source), destination(lake, kind), ExportOptions(partition_by=fields, mode="upsert")
    ):
        if report.error is not None:
            raise report.error


def table_rows(lake: Path, kind: str) -> pa.Table:
    if kind == "iceberg":
        return table_of(lake).scan().to_arrow()
    return deltalake.DeltaTable(lake / "orders").to_pyarrow_table()


def rows(lake: Path, kind: str) -> dict[bytes, bytes]:
    table = table_rows(lake, kind)
    pairs = list(zip(table["key"].to_pylist(), table["value"].to_pylist(), strict=True))
    assert len({key for key, _ in pairs}) == len(pairs)
    return dict(pairs)


def changes(chance: random.Random, count: int) -> Iterator[tuple[int, bytes, bytes | None]]:
    for number in range(count):
        value = None if chance.random() < 0.3 else b"value %d" % chance.randrange(1 << 30)
        yield number * HOUR_MS // 20, b"key %d" % chance.randrange(30), value


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("partition_by", ["", "hour(timestamp)", "partition"])
def test_upsert_when_runs_follow_each_other_then_the_table_has_the_latest_value_of_each_key(
    tmp_path: Path, kind: str, partition_by: str
) -> None:
    source, lake, chance = tmp_path / "logs", tmp_path / "lake", random.Random(7)
    expected: dict[bytes, bytes] = {}
    ends = [0, 0]
    for _ in range(4):
        records = list(changes(chance, 60))
        for _, key, value in records:
            expected.pop(key, None)
            if value is not None:
                expected[key] = value
        for partition in (0, 1):
            own = [one for one in records if int(one[1].split()[1]) % 2 == partition]
            write(source / f"orders-{partition}", ends[partition], own)
            ends[partition] += len(own)
        upsert(source, lake, kind, partition_by)
        assert rows(lake, kind) == expected
    upsert(source, lake, kind, partition_by)
    assert rows(lake, kind) == expected
    assert not [path for path in (lake / "orders").glob("part-*") if kind == "iceberg"]


@pytest.mark.parametrize("kind", KINDS)
def test_upsert_when_a_key_is_in_two_partitions_then_the_later_timestamp_stays(
    tmp_path: Path, kind: str
) -> None:
    source, lake = tmp_path / "logs", tmp_path / "lake"
    write(source / "orders-0", 0, [(100, b"a", b"new"), (0, b"b", b"old")])
    upsert(source, lake, kind)
    write(source / "orders-1", 0, [(50, b"a", b"older"), (50, b"b", b"newer")])
    upsert(source, lake, kind)
    assert rows(lake, kind) == {b"a": b"new", b"b": b"newer"}


@pytest.mark.parametrize("kind", KINDS)
def test_upsert_when_a_run_changes_no_row_then_the_next_one_continues_after_it(
    tmp_path: Path, kind: str
) -> None:
    source, lake = tmp_path / "logs", tmp_path / "lake"
    write(source / "orders-0", 0, [(0, b"a", b"1")])
    upsert(source, lake, kind)
    write(source / "orders-0", 1, [(0, b"b", None), (0, b"c", None)])
    upsert(source, lake, kind)
    (source / "orders-0" / f"{1:020}.log").unlink()  # as retention does
    (source / "orders-0" / f"{0:020}.log").unlink()
    write(source / "orders-0", 3, [(0, b"d", b"4")])
    upsert(source, lake, kind)
    assert rows(lake, kind) == {b"a": b"1", b"d": b"4"}


@pytest.mark.parametrize("kind", KINDS)
def test_upsert_when_a_record_has_no_key_then_nothing_is_changed(tmp_path: Path, kind: str) -> None:
    source, lake = tmp_path / "logs", tmp_path / "lake"
    write(source / "orders-0", 0, [(0, b"a", b"1")])
    upsert(source, lake, kind)
    write(source / "orders-0", 1, [(0, b"a", b"2"), (0, None, b"3")])
    with pytest.raises(ExportError, match="orders-0: offset 2: mode upsert: expected a key"):
        upsert(source, lake, kind)
    assert rows(lake, kind) == {b"a": b"1"}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("first", ["append", "upsert"])
def test_export_when_the_table_was_created_with_the_other_mode_then_is_refused(
    tmp_path: Path, kind: str, first: Any
) -> None:
    source, lake = tmp_path / "logs", tmp_path / "lake"
    write(source / "orders-0", 0, [(0, b"a", b"1")])
    other: Any = "upsert" if first == "append" else "append"
    (report,) = run_export(folder_scan(source), destination(lake, kind), ExportOptions(mode=first))
    assert report.error is None
    write(source / "orders-0", 1, [(0, b"a", b"2")])
    (report,) = run_export(folder_scan(source), destination(lake, kind), ExportOptions(mode=other))
    assert f"expected mode {first}, with which the table was created, found {other}" in str(report.error)
    assert rows(lake, kind) == {b"a": b"1"}


def test_upsert_when_files_are_plain_parquet_then_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "logs" / "orders-0", 0, [(0, b"a", b"1")])
    with pytest.raises(ExportError, match="plain Parquet files cannot replace rows"):
        upsert(tmp_path / "logs", tmp_path / "lake", "parquet")


@pytest.mark.parametrize("kind", KINDS)
def test_upsert_when_values_are_records_then_a_record_of_nulls_is_no_tombstone(
    tmp_path: Path, kind: str
) -> None:
    source, lake = tmp_path / "logs", tmp_path / "lake"
    write(source / "orders-0", 0, [(0, b"a", b'{"id": null}'), (0, b"b", b'{"id": 2}')])
    options = ExportOptions(mode="upsert")
    scan = folder_scan(source, pa.struct([("id", pa.int64())]))
    plan = plan_table("orders", scan, destination(lake, kind), options)
    plan.commit([file for task in plan.tasks for file in task.run_task()])
    assert sorted(table_rows(lake, kind).select(["kafka_key", "id"]).to_pylist(), key=str) == [
        {"kafka_key": b"a", "id": None},
        {"kafka_key": b"b", "id": 2},
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_upsert_when_a_value_is_the_null_of_json_then_its_key_keeps_a_row(tmp_path: Path, kind: str) -> None:
    source, lake = tmp_path / "logs", tmp_path / "lake"
    write(source / "orders-0", 0, [(0, b"a", b'{"id": 1}'), (0, b"b", b'{"id": 2}')])
    write(source / "orders-0", 2, [(1, b"a", b"null"), (1, b"b", None)])
    scan = folder_scan(source, pa.struct([("id", pa.int64())]))
    (report,) = run_export(scan, destination(lake, kind), ExportOptions(mode="upsert"))
    assert report.error is None
    assert table_rows(lake, kind).select(["kafka_key", "id"]).to_pylist() == [{"kafka_key": b"a", "id": None}]


@pytest.mark.parametrize("column", ["value", "key", "timestamp"])
def test_upsert_when_a_column_is_missing_then_is_refused_before_a_table_is_created(
    tmp_path: Path, column: str
) -> None:
    source, lake = tmp_path / "logs", tmp_path / "lake"
    write(source / "orders-0", 0, [(0, b"a", b"1")])
    scan = kafkafmt.scan(source, columns=[name for name in COLUMNS if name != column])
    (report,) = run_export(scan, destination(lake, "delta"), ExportOptions(mode="upsert"))
    assert isinstance(report.error, ExportError)
    assert f"mode upsert: expected the column {column!r}" in str(report.error)
    assert not (lake / "orders" / "_delta_log").exists()


@pytest.mark.parametrize("kind", KINDS)
def test_upsert_when_files_have_a_size_and_a_compression_then_those_of_the_table_have_them(
    tmp_path: Path, kind: str
) -> None:
    source, lake, chance = tmp_path / "logs", tmp_path / "lake", random.Random(3)
    records = [(number, b"%d" % number, chance.randbytes(200)) for number in range(4000)]
    for first in range(0, 4000, 1000):
        write(source / "orders-0", first, records[first : first + 1000])
    write_options = WriteOptions(target_file_bytes=200_000, row_group_bytes=100_000, compression="snappy")
    options = ExportOptions(mode="upsert", write=write_options)
    (report,) = run_export(folder_scan(source), destination(lake, kind), options)
    assert report.error is None
    files = list(lake.rglob("*.parquet"))
    assert len(files) > 2
    assert max(path.stat().st_size for path in files) < 400_000
    for path in files:
        footer = pq.read_metadata(path)
        groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
        assert {group.column(0).compression for group in groups} == {"SNAPPY"}
        assert max(group.total_byte_size for group in groups) < 250_000
    assert rows(lake, kind) == {key: value for _, key, value in records}


def test_upsert_when_a_file_has_many_row_groups_then_the_latest_keys_are_hashed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, lake = tmp_path / "logs", tmp_path / "lake"
    options = ExportOptions(mode="upsert", write=WriteOptions(row_group_bytes=10_000))
    calls: list[int] = []
    index_in = pc.index_in

    def counted(values: Any, **named: Any) -> Any:
        calls.append(len(values))
        return index_in(values, **named)

    for first in range(0, 1000, 100):
        records = [(0, b"%d" % number, b"x" * 100) for number in range(first, first + 100)]
        write(source / "orders-0", first, records)
    (report,) = run_export(folder_scan(source), destination(lake, "iceberg"), options)
    assert report.error is None
    (file,) = table_of(lake).inspect.files()["file_path"].to_pylist()
    assert pq.read_metadata(file.removeprefix("file://")).num_row_groups > 5
    write(source / "orders-0", 1000, [(1, b"%d" % number, b"new") for number in range(0, 1000, 7)])
    monkeypatch.setattr(pc, "index_in", counted)
    (report,) = run_export(folder_scan(source), destination(lake, "iceberg"), options)
    assert (report.rows, report.error) == (143, None)
    assert calls == [1000]
    assert rows(lake, "iceberg") == {
        b"%d" % number: b"x" * 100 if number % 7 else b"new" for number in range(1000)
    }


def test_keys_when_they_are_joined_then_offsets_have_64_bits() -> None:
    for small, large in ((pa.binary(), pa.large_binary()), (pa.string(), pa.large_string())):
        keys = pa.chunked_array([["a"], ["b"]], small)
        assert _large(keys).type == large
    assert _large(pa.chunked_array([[1]], pa.int64())).type == pa.int64()


@pytest.mark.parametrize(
    "kills",
    [
        pytest.param(4, marks=pytest.mark.full),
        pytest.param(40, marks=[pytest.mark.exhaustive, pytest.mark.slow, pytest.mark.timeout(900)]),
    ],
)
@pytest.mark.parametrize("kind", KINDS)
def test_upsert_when_killed_at_any_step_then_the_table_is_that_before_or_after_the_run(
    tmp_path: Path, kind: str, kills: int
) -> None:
    preload(__name__)
    source, lake, chance = tmp_path / "logs", tmp_path / "lake", random.Random(kills)
    expected: dict[bytes, bytes] = {}

    def next_run() -> None:
        records = list(changes(chance, 40))
        for _, key, value in records:
            expected.pop(key, None)
            if value is not None:
                expected[key] = value
        write(source / "orders-0", next_run_first[0], records)
        next_run_first[0] += 40

    next_run_first = [0]
    next_run()
    upsert(source, lake, kind)
    steps = 2 * run_until_step(-1, STEPS_IN, upsert, source, tmp_path / "counted", kind).steps
    killed = 0
    while killed < kills:
        before = rows(lake, kind)
        next_run()
        step = chance.randrange(1, steps)
        killed += run_until_step(step, STEPS_IN, upsert, source, lake, kind).was_killed
        assert rows(lake, kind) in (before, expected)
        upsert(source, lake, kind)
        assert rows(lake, kind) == expected
    assert not list(lake.rglob("merged-*"))
