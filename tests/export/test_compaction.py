"""Compaction: the same rows and offsets in fewer files, also while exports commit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest

import kafkafmt
from export.scans import folder_scan, write_log
from export.test_iceberg import destination_of, options_of, other_writer, table_of
from kafkafmt.decode import Decoding
from kafkafmt.export.compaction import compact
from kafkafmt.export.errors import ExportError, TableConflictError
from kafkafmt.export.iceberg import _has_files
from kafkafmt.export.iceberg_rewriting import small_files
from kafkafmt.export.partitioning import parse_partitioning
from kafkafmt.export.plan import ExportOptions
from kafkafmt.export.running import run_export
from kafkafmt.export.runs import RunLease
from kafkafmt.export.tables import Destination


def destination(lake: Path, kind: str) -> Destination:
    return destination_of(lake) if kind == "iceberg" else Destination(str(lake), kind)


def export(source: Path, lake: Path, kind: str, partition_by: str = "day(timestamp)") -> int:
    options = ExportOptions(parse_partitioning(partition_by) if partition_by else ())
    (report,) = run_export(folder_scan(source), destination(lake, kind), options)
    assert report.error is None
    return report.rows


def files_and_rows(lake: Path, kind: str) -> tuple[int, list[dict[str, Any]]]:
    if kind == "delta":
        table = deltalake.DeltaTable(lake / "orders")
        return len(table.file_uris()), rows_of(table.to_pyarrow_table())
    table = table_of(lake)
    return len(list(table.scan().plan_files())), rows_of(table.scan().to_arrow())


def rows_of(table: Any) -> list[dict[str, Any]]:
    return table.select(["key", "value", "offset", "timestamp"]).sort_by("offset").to_pylist()


def several_exports(source: Path, lake: Path, kind: str, partition_by: str = "day(timestamp)") -> None:
    for first in range(0, 500, 100):
        write_log(source, "orders-0", first, 100)
        assert export(source, lake, kind, partition_by) == 100


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_compact_when_a_table_has_many_small_files_then_it_has_the_same_rows_in_one_file(
    tmp_path: Path, kind: str
) -> None:
    source, lake = tmp_path / "logs", tmp_path / "lake"
    several_exports(source, lake, kind)
    before, rows = files_and_rows(lake, kind)
    report = compact(destination(lake, kind), "orders")
    after, same = files_and_rows(lake, kind)
    assert (after, same) == (1, rows)
    assert before - report.files_removed + report.files_added == after < before
    assert compact(destination(lake, kind), "orders").files_removed == 0
    write_log(source, "orders-0", 500, 100)
    assert export(source, lake, kind) == 100


def test_compact_when_the_topic_has_dots_then_its_name_is_in_backquotes(tmp_path: Path) -> None:
    source, lake = tmp_path / "logs", tmp_path / "lake"
    for first in (0, 100):
        write_log(source, "orders.eu-0", first, 100)
        assert export(source, lake, "iceberg") == 100
    table = Destination("raw.`orders.eu`", "iceberg", options_of(lake), one_table=True)
    report = compact(table)
    assert report.location == table.target
    assert (report.files_removed, report.files_added) == (2, 1)
    for wrong in ("raw.orders.eu", "raw.`orders.eu", "raw..orders", ""):
        with pytest.raises(ExportError, match="expected"):
            compact(replace(table, target=wrong))
    with pytest.raises(ExportError, match=r"found none; a topic with dots .* is quoted: raw\.`orders\.eu`$"):
        compact(replace(table, target="raw.orders.eu"))
    with pytest.raises(ExportError, match=r"found none$"):
        compact(replace(table, target="raw.orders"))


def test_compact_when_an_export_commits_meanwhile_then_both_are_kept(
    tmp_path: Path, monkeypatch: Any
) -> None:
    source, lake = tmp_path / "logs", tmp_path / "lake"
    several_exports(source, lake, "iceberg", "")

    def small_files_and_export(*arguments: Any) -> Any:
        found = small_files(*arguments)
        write_log(source, "orders-0", 500, 100)
        assert export(source, lake, "iceberg", "") == 100
        return found

    monkeypatch.setattr("kafkafmt.export.iceberg_rewriting.small_files", small_files_and_export)
    compact(destination_of(lake), "orders")
    files, rows = files_and_rows(lake, "iceberg")
    assert (files, [row["offset"] for row in rows]) == (2, list(range(600)))
    assert export(source, lake, "iceberg", "") == 0


def test_compact_when_another_writer_has_removed_the_files_then_nothing_is_changed(
    tmp_path: Path, monkeypatch: Any
) -> None:
    source, lake = tmp_path / "logs", tmp_path / "lake"
    several_exports(source, lake, "iceberg", "")

    def small_files_and_delete(*arguments: Any) -> Any:
        found = small_files(*arguments)
        table_of(lake).delete("offset < 100")
        other_writer(lake)
        return found

    monkeypatch.setattr("kafkafmt.export.iceberg_rewriting.small_files", small_files_and_delete)
    before = len(list(lake.rglob("*.parquet")))
    with pytest.raises(TableConflictError, match="has removed a file"):
        compact(destination_of(lake), "orders")
    _, rows = files_and_rows(lake, "iceberg")
    assert [row["offset"] for row in rows] == [-1, *range(100, 500)]
    assert len(list(lake.rglob("*.parquet"))) == before + 1


def test_compact_when_rows_of_a_file_were_deleted_meanwhile_then_it_is_not_replaced(tmp_path: Path) -> None:
    source, lake = tmp_path / "logs", tmp_path / "lake"
    several_exports(source, lake, "iceberg", "")
    table = table_of(lake)
    tasks = list(table.scan().plan_files())
    assert _has_files(table, tasks)
    tasks[0].delete_files.add(tasks[1].file)
    assert not _has_files(table, tasks)


def test_compact_when_it_fails_then_the_next_one_removes_its_files(tmp_path: Path, monkeypatch: Any) -> None:
    source, lake = tmp_path / "logs", tmp_path / "lake"
    several_exports(source, lake, "iceberg", "")
    before = set(lake.rglob("*.parquet"))

    def fail(*arguments: Any) -> None:
        raise OSError("no answer")

    with monkeypatch.context() as patched:
        patched.setattr("kafkafmt.export.iceberg.IcebergTable.replace", fail)
        with pytest.raises(OSError, match="no answer"):
            compact(destination_of(lake), "orders")
    (left,) = set(lake.rglob("*.parquet")) - before
    compact(destination_of(lake), "orders")
    assert not left.exists()


def test_compact_when_files_are_plain_parquet_then_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="expected a table of format delta or iceberg"):
        compact(Destination(str(tmp_path)), "orders")


def test_compact_when_a_text_column_is_named_as_one_of_kafka_then_is_joined(tmp_path: Path) -> None:
    source, lake = tmp_path / "logs", tmp_path / "lake"
    decoding = Decoding(value="json", reader_schema=pa.struct([("timestamp", pa.string())]), on_error="raise")
    for first in (0, 10):
        write_log(source, "orders-0", first, 10, value='{{"timestamp": "{}"}}')
        scan = kafkafmt.scan(source, columns=["value", "partition"], decode=decoding)
        (report,) = run_export(scan, destination_of(lake), ExportOptions())
        assert report.error is None
    assert compact(destination_of(lake), "orders").files_added == 1
    found = table_of(lake).scan().to_arrow()["timestamp"].to_pylist()
    assert sorted(map(int, found)) == list(range(20))


def test_compact_when_it_fails_while_it_begins_then_another_one_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, lake = tmp_path / "logs", tmp_path / "lake"
    several_exports(source, lake, "iceberg", "")
    take = RunLease.take

    def take_and_fail(lease: RunLease) -> None:
        take(lease)
        raise OSError("no answer")

    with monkeypatch.context() as patched:
        patched.setattr(RunLease, "take", take_and_fail)
        with pytest.raises(OSError, match="no answer"):
            compact(destination_of(lake), "orders")
    assert compact(destination_of(lake), "orders").files_added == 1
