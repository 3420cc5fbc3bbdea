"""Iceberg tables that other writers change during an export, or between exports."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table
from pyiceberg.transforms import HourTransform
from pyiceberg.types import StringType

from export.scans import folder_scan, write_log
from export.test_iceberg import (
    destination_of,
    ensure_no_file_is_left,
    export,
    offsets,
    options_of,
    other_writer,
    table_of,
)
from kafkafmt.export.errors import ExportError, TableConflictError
from kafkafmt.export.iceberg import IcebergTable
from kafkafmt.export.iceberg_fence import EXPORT_FENCE, raise_fence
from kafkafmt.export.plan import ExportOptions, ExportPlan, plan_table
from kafkafmt.export.running import run_export
from kafkafmt.export.tables import DataFile

CITY = pa.struct([("city", pa.string())])


def planned(source: Path, lake: Path, mode: Any, kind: pa.DataType | None = None) -> ExportPlan:
    return plan_table("orders", folder_scan(source, kind), destination_of(lake), ExportOptions(mode=mode))


def written(plan: ExportPlan) -> list[DataFile]:
    return [file for task in plan.tasks for file in task.run_task()]


def add_column(lake: Path, name: str, value: str | None = None) -> None:
    """Add a column. value: of all rows, which are written anew."""
    with table_of(lake).update_schema() as update:
        update.add_column(name, StringType())
    if value is not None:
        table = table_of(lake)
        rows = table.scan().to_arrow()
        at = rows.schema.get_field_index(name)
        table.overwrite(rows.set_column(at, name, pa.array([value] * rows.num_rows)))


def test_upsert_when_another_writer_adds_and_fills_a_column_meanwhile_then_its_values_are_kept(
    tmp_path: Path,
) -> None:
    source, lake = tmp_path / "logs", tmp_path / "lake"
    write_log(source, "orders-0", 0, 7)
    export(source, lake, mode="upsert")
    write_log(source, "orders-0", 7, 1)
    plan = planned(source, lake, "upsert")
    files = written(plan)
    add_column(lake, "extra", "kept")
    plan.commit(files)
    rows = table_of(lake).scan(selected_fields=("offset", "extra")).to_arrow()
    assert dict(zip(rows["offset"].to_pylist(), rows["extra"].to_pylist(), strict=True)) == {
        **dict.fromkeys(range(1, 7), "kept"),
        7: None,
    }


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_commit_when_a_column_was_renamed_meanwhile_then_is_a_conflict(tmp_path: Path, mode: str) -> None:
    source, lake = tmp_path / "logs", tmp_path / "lake"
    write_log(source, "orders-0", 0, 7, value='{{"city": "Bern"}}')
    export(source, lake, type=CITY, mode=mode)
    write_log(source, "orders-0", 7, 7, value='{{"city": "Genf"}}')
    plan = planned(source, lake, mode, CITY)
    files = written(plan)
    with table_of(lake).update_schema() as update:
        update.rename_column("city", "town")
    with pytest.raises(
        TableConflictError, match="it has renamed or removed the column 'city'; run this again"
    ):
        plan.commit(files)
    assert set(table_of(lake).scan().to_arrow()["town"].to_pylist()) == {"Bern"}
    ensure_no_file_is_left(lake)


def test_export_when_another_one_creates_the_table_meanwhile_then_is_a_conflict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, lake = tmp_path / "logs", tmp_path / "lake"
    write_log(source, "orders-0", 0, 100)

    begin = IcebergTable.begin
    other: list[ExportPlan] = []

    def begin_and_plan(self: Any, run: str) -> None:
        begin(self, run)
        monkeypatch.undo()
        other.append(planned(source, lake, "append"))

    monkeypatch.setattr(IcebergTable, "begin", begin_and_plan)
    (report,) = run_export(folder_scan(source), destination_of(lake), ExportOptions())
    assert isinstance(report.error, TableConflictError)
    assert "another one has created it" in str(report.error)
    other[0].commit(written(other[0]))
    assert offsets(table_of(lake)) == list(range(100))
    ensure_no_file_is_left(lake)


def before_a_commit(monkeypatch: pytest.MonkeyPatch, change: Callable[[], object]) -> None:
    """Change a table before the next commit of any writer reaches the catalog."""
    commit_table = SqlCatalog.commit_table

    def changed(*arguments: Any) -> Any:
        monkeypatch.undo()
        change()
        return commit_table(*arguments)

    monkeypatch.setattr(SqlCatalog, "commit_table", changed)


@pytest.mark.parametrize("is_last", [True, False])
def test_fence_when_its_request_is_repeated_then_the_conflict_with_itself_is_a_success(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_last: bool
) -> None:
    source, lake = tmp_path / "logs", tmp_path / "lake"
    write_log(source, "orders-0", 0, 100)
    export(source, lake)
    with table_of(lake).transaction() as transaction:
        transaction.set_properties({"commit.retry.num-retries": "0"})
    killed = planned(source, lake, "append")
    killed.table._lease.release(is_known=False)  # its file stays
    commit_table = SqlCatalog.commit_table

    def repeated(*arguments: Any) -> None:
        commit_table(*arguments)
        monkeypatch.undo()
        if not is_last:
            raise_fence(lambda: table_of(lake), EXPORT_FENCE, uuid.uuid4().hex)
        raise CommitFailedException("409")  # of the same request once more, as its answer was lost

    monkeypatch.setattr(SqlCatalog, "commit_table", repeated)
    planned(source, lake, "append").abort([])
    table = table_of(lake)
    assert offsets(table) == list(range(100))
    assert len(table.snapshots()) == (2 if is_last else 3)
    ensure_no_file_is_left(lake)


@pytest.mark.parametrize("moment", ["before the table is read", "after it"])
def test_commit_when_another_run_has_removed_its_files_meanwhile_then_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    source, lake = tmp_path / "logs", tmp_path / "lake"
    write_log(source, "orders-0", 0, 100)
    plan = planned(source, lake, "append")
    files = written(plan)
    os.close(plan.table._lease._descriptor)  # as if the file system had no locks
    plan.table._lease._descriptor = -1

    def take_over() -> None:
        planned(source, lake, "append").abort([])

    if moment == "after it":
        before_a_commit(monkeypatch, take_over)
    else:
        take_over()
    with pytest.raises(TableConflictError, match="it has begun as this one was suspended; run this again"):
        plan.commit(files)
    (report,) = run_export(folder_scan(source), destination_of(lake), ExportOptions())
    assert report.rows == 100
    assert offsets(table_of(lake)) == list(range(100))
    ensure_no_file_is_left(lake)


def test_export_when_columns_are_added_by_two_writers_at_once_then_is_a_conflict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, lake = tmp_path / "logs", tmp_path / "lake"
    write_log(source, "orders-0", 0, 10, value='{{"city": "Bern"}}')
    export(source, lake, type=CITY)
    write_log(source, "orders-0", 10, 10, value='{{"city": "Bern", "zip": "3000"}}')
    before_a_commit(monkeypatch, lambda: add_column(lake, "other"))
    wider = pa.struct([*CITY, ("zip", pa.string())])
    (report,) = run_export(folder_scan(source, wider), destination_of(lake), ExportOptions())
    assert isinstance(report.error, TableConflictError)
    assert export(source, lake, type=wider)[0].rows == 10


def rolled_back_and_expired(tmp_path: Path) -> Path:
    """Return the folder of a table that was rolled back to another writer's snapshot, after which ours expired."""
    source, lake = tmp_path / "logs", tmp_path / "lake"
    write_log(source, "orders-0", 0, 100)
    export(source, lake)
    other_writer(lake)
    write_log(source, "orders-0", 100, 100)
    export(source, lake)
    first, others, _ = (one.snapshot_id for one in table_of(lake).snapshots())
    table_of(lake).manage_snapshots().rollback_to_snapshot(others).commit()
    table_of(lake).maintenance.expire_snapshots().by_id(first).commit()
    return lake


def test_export_when_the_offsets_of_a_rolled_back_table_have_expired_then_fails_until_they_are_set(
    tmp_path: Path,
) -> None:
    lake = rolled_back_and_expired(tmp_path)
    with pytest.raises(ExportError, match="they have expired with older snapshots"):
        export(tmp_path / "logs", lake)
    with table_of(lake).transaction() as transaction:
        transaction.set_properties(
            {"kafkafmt.offsets": '{"orders":{"0":100}}', "kafkafmt.sequence-number": "1"}
        )
    assert export(tmp_path / "logs", lake)[0].rows == 100
    assert offsets(table_of(lake)) == [-1, *range(200)]


def test_export_when_the_sequence_number_of_expired_offsets_is_no_number_then_the_error_names_the_property(
    tmp_path: Path,
) -> None:
    lake = rolled_back_and_expired(tmp_path)
    with table_of(lake).transaction() as transaction:
        transaction.set_properties({"kafkafmt.sequence-number": "first"})
    with pytest.raises(ExportError, match=r"kafkafmt.sequence-number: expected a number, found 'first'"):
        export(tmp_path / "logs", lake)


def test_export_when_expired_offsets_were_removed_from_the_properties_then_fails(tmp_path: Path) -> None:
    source, lake = tmp_path / "logs", tmp_path / "lake"
    write_log(source, "orders-0", 0, 100)
    export(source, lake)
    other_writer(lake)
    table = table_of(lake)
    table.maintenance.expire_snapshots().by_id(table.snapshots()[0].snapshot_id).commit()
    with table_of(lake).transaction() as transaction:
        transaction.remove_properties("kafkafmt.offsets")
    with pytest.raises(ExportError, match="they have expired with older snapshots"):
        export(source, lake)


def test_export_when_a_table_was_rolled_back_to_before_its_first_run_then_exports_all(tmp_path: Path) -> None:
    source, lake = tmp_path / "logs", tmp_path / "lake"
    write_log(source, "orders-0", 0, 100)
    plan = planned(source, lake, "append")
    plan.abort([])
    table_of(lake).append(table_of(lake).scan().to_arrow())
    export(source, lake)
    first = table_of(lake).snapshots()[0].snapshot_id
    table_of(lake).manage_snapshots().rollback_to_snapshot(first).commit()
    assert export(source, lake)[0].rows == 100
    assert offsets(table_of(lake)) == list(range(100))


def create(lake: Path, columns: pa.Schema) -> Table:
    """Create a table as another writer does."""
    catalog = load_catalog(None, **options_of(lake))
    catalog.create_namespace("raw")
    return catalog.create_table(("raw", "orders"), columns)


def test_export_when_another_writer_has_partitioned_by_a_time_itself_then_its_value_finds_the_file(
    tmp_path: Path,
) -> None:
    source, lake = tmp_path / "logs", tmp_path / "lake"
    columns = [("offset", pa.int64()), ("timestamp", pa.timestamp("us", "UTC"))]
    with create(lake, pa.schema(columns)).update_spec() as spec:
        spec.add_identity("timestamp")
    write_log(source, "orders-0", 0, 3)
    assert export(source, lake)[0].rows == 3
    scan = table_of(lake).scan(row_filter="timestamp = '2026-01-01T00:00:36+00:00'")
    assert len(list(scan.plan_files())) == 1
    assert scan.to_arrow()["offset"].to_pylist() == [1]


def test_export_when_another_writer_has_named_a_partition_then_only_a_field_of_that_name_is_refused(
    tmp_path: Path,
) -> None:
    source, lake = tmp_path / "logs", tmp_path / "lake"
    fields = [("at", pa.timestamp("us", "UTC")), ("at_hour", pa.string())]
    with create(lake, pa.schema(fields)).update_spec() as spec:
        spec.add_field("at", HourTransform(), "hour_of_at")
    value = '{{"at": "2026-01-01T05:00:00Z", "at_hour": "mine", "hour_of_at": "new"}}'
    write_log(source, "orders-0", 0, 1, value=value)
    assert export(source, lake, type=pa.struct(fields))[0].rows == 1
    (found,) = table_of(lake).scan(row_filter="at = '2026-01-01T05:00:00+00:00'").to_arrow().to_pylist()
    assert found["at_hour"] == "mine"
    write_log(source, "orders-0", 1, 1, value=value)
    with pytest.raises(ExportError, match=r"expected no other column 'hour_of_at', found 'hour_of_at'"):
        export(source, lake, type=pa.struct([*fields, ("hour_of_at", pa.string())]))


def test_export_when_another_writer_has_partitioned_by_a_nested_field_then_is_refused(tmp_path: Path) -> None:
    source, lake = tmp_path / "logs", tmp_path / "lake"
    fields = [("address", CITY), ("name", pa.string())]
    with create(lake, pa.schema(fields)).update_spec() as spec:
        spec.add_identity("address.city")
    write_log(source, "orders-0", 0, 1, value='{{"address": {{"city": "Bern"}}, "name": "n"}}')
    with pytest.raises(ExportError, match=r"found 'address.city', which is within a column"):
        export(source, lake, type=pa.struct(fields))
