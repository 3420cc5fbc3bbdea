"""Iceberg tables in an SQLite catalog: read back by pyiceberg and DuckDB, changed by other writers, and killed."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from pyarrow.fs import FileSystem
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.expressions import EqualTo
from pyiceberg.table import Table

from export.kills import preload, run_until_step
from export.scans import folder_scan, write_log
from kafkafmt.export.errors import ExportError, SchemaConflictError, TableConflictError
from kafkafmt.export.partitioning import parse_partitioning
from kafkafmt.export.plan import ExportOptions, plan_table
from kafkafmt.export.running import TableReport, run_export
from kafkafmt.export.tables import Destination

STEPS_IN = ("/kafkafmt/export/", "/pyiceberg/catalog/", "/pyiceberg/table/")


def options_of(lake: Path) -> dict[str, str]:
    lake.mkdir(exist_ok=True)
    return {"type": "sql", "uri": f"sqlite:///{lake}/catalog.db", "warehouse": f"file://{lake}/tables"}


def destination_of(lake: Path, **more: Any) -> Destination:
    return Destination("raw", "iceberg", options_of(lake), **more)


def export(source: Path, lake: Path, partition_by: str = "", **more: Any) -> list[TableReport]:
    fields = parse_partitioning(partition_by) if partition_by else ()
    scan = folder_scan(source, more.pop("type", None))
    reports = list(run_export(scan, destination_of(lake), ExportOptions(partition_by=fields, **more)))
    for report in reports:
        if report.error is not None:
            raise report.error
    return reports


def table_of(lake: Path, topic: str = "orders") -> Table:
    catalog: Catalog = load_catalog(None, **options_of(lake))
    return catalog.load_table(("raw", topic))


def offsets(table: Table) -> list[int]:
    return sorted(table.scan(selected_fields=("offset",)).to_arrow()["offset"].to_pylist())


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("partition_by", ["", "topic, hour(timestamp)", "partition, day(timestamp)"])
def test_export_when_it_runs_again_after_new_records_then_each_is_in_the_table_once(
    tmp_path: Path, processes: int, partition_by: str
) -> None:
    source, lake = tmp_path / "logs", tmp_path / "lake"
    for partition in range(2):
        write_log(source, f"orders-{partition}", 0, 1000)
    rows = [[report.rows for report in export(source, lake, partition_by, processes=processes)] for _ in "ab"]
    assert rows == [[2000], [0]]
    write_log(source, "orders-1", 1000, 500)
    assert [report.rows for report in export(source, lake, processes=processes)] == [500]
    query = 'SELECT partition, count(*), max("offset") FROM found GROUP BY ALL ORDER BY ALL'
    with duckdb.connect() as database:
        database.register("found", table_of(lake).scan().to_arrow())
        assert database.sql(query).fetchall() == [(0, 1000, 999), (1, 1500, 1499)]
    assert [str(field.transform) for field in table_of(lake).spec().fields] == [
        field.transform for field in (parse_partitioning(partition_by) if partition_by else ())
    ]


def test_scan_when_it_asks_for_a_partition_and_offsets_then_other_files_are_not_read(tmp_path: Path) -> None:
    source, lake = tmp_path / "logs", tmp_path / "lake"
    write_log(source, "orders-0", 0, 1000)
    export(source, lake, "hour(timestamp)")
    all_files = list(table_of(lake).scan().plan_files())
    files = list(table_of(lake).scan(row_filter=EqualTo("offset", 7)).plan_files())
    assert len(files) == 1 < len(all_files)


def test_export_when_values_have_new_fields_then_the_table_has_them_and_old_rows_null(tmp_path: Path) -> None:
    source, lake = tmp_path / "logs", tmp_path / "lake"
    before = pa.struct([("id", pa.int32()), ("address", pa.struct([("city", pa.string())]))])
    after = pa.struct(
        [
            ("id", pa.int64()),
            ("address", pa.struct([("city", pa.string()), ("zip", pa.list_(pa.string()))])),
            ("ok", pa.bool_()),
        ]
    )
    write_log(source, "orders-0", 0, 1, value=_escaped('{"id": 1, "address": {"city": "Bern"}}'))
    export(source, lake, type=before)
    value = '{"id": 5000000000, "address": {"city": "Genf", "zip": ["1200"]}, "ok": true}'
    later = tmp_path / "later"
    write_log(later, "orders-0", 1, 1, value=_escaped(value))
    export(later, lake, type=after)
    rows = table_of(lake).scan(selected_fields=("id", "address", "ok")).to_arrow().sort_by("id").to_pylist()
    assert rows == [
        {"id": 1, "address": {"city": "Bern", "zip": None}, "ok": None},
        {"id": 5000000000, "address": {"city": "Genf", "zip": ["1200"]}, "ok": True},
    ]
    write_log(later, "orders-0", 2, 1, value=_escaped('{"id": "x"}'))
    with pytest.raises(SchemaConflictError, match="'id'"):
        export(later, lake, type=pa.struct([("id", pa.string())]))


def _escaped(json: str) -> str:
    return json.replace("{", "{{").replace("}", "}}")


def source_with(folder: Path, first: int) -> Path:
    write_log(folder, "orders-0", first, 100)
    return folder


def other_writer(lake: Path) -> None:
    table = table_of(lake)
    rows = table.scan(limit=1).to_arrow()
    table.append(rows.set_column(rows.schema.get_field_index("offset"), "offset", pa.array([-1])))


def test_export_when_others_wrote_and_snapshots_have_expired_then_continues(tmp_path: Path) -> None:
    source, lake = source_with(tmp_path / "logs", 0), tmp_path / "lake"
    export(source, lake)
    other_writer(lake)
    table = table_of(lake)
    table.maintenance.expire_snapshots().by_id(table.snapshots()[0].snapshot_id).commit()
    source_with(source, 100)
    assert export(source, lake)[0].rows == 100
    assert offsets(table_of(lake)) == [-1, *range(200)]


def test_export_when_the_table_was_rolled_back_then_continues_from_there(tmp_path: Path) -> None:
    source, lake = source_with(tmp_path / "logs", 0), tmp_path / "lake"
    export(source, lake)
    first = table_of(lake).snapshots()[0].snapshot_id
    source_with(source, 100)
    export(source, lake)
    table_of(lake).manage_snapshots().rollback_to_snapshot(first).commit()
    assert export(source, lake)[0].rows == 100
    assert offsets(table_of(lake)) == list(range(200))


def test_commit_when_another_writer_appends_meanwhile_then_both_are_kept(tmp_path: Path) -> None:
    source, lake = source_with(tmp_path / "logs", 0), tmp_path / "lake"
    export(source, lake)
    source_with(source, 100)
    plan = plan_table("orders", folder_scan(source), destination_of(lake), ExportOptions())
    files = [file for task in plan.tasks for file in task.run_task()]
    require = plan.table.require
    calls: list[int] = []

    def require_and_append() -> Table:
        """Append after the table was loaded, so that the first commit is too late."""
        table = require()
        calls.append(1)
        if len(calls) == 1:
            other_writer(lake)
        return table

    plan.table.require = require_and_append
    plan.commit(files)
    assert offsets(table_of(lake)) == [-1, *range(200)]
    ensure_no_file_is_left(lake)


def test_commit_when_another_export_has_committed_then_is_refused_and_its_files_are_removed(
    tmp_path: Path,
) -> None:
    source, lake = source_with(tmp_path / "logs", 0), tmp_path / "lake"
    plan = plan_table("orders", folder_scan(source), destination_of(lake), ExportOptions())
    files = [file for task in plan.tasks for file in task.run_task()]
    with pytest.raises(TableConflictError, match="another export writes to this table"):
        export(source, lake)
    lease: Any = plan.table._lease
    os.close(lease._descriptor)  # as if the file system had no locks
    lease._descriptor = -1
    export(source, lake)
    with pytest.raises(TableConflictError, match="expected offset None, found 100"):
        plan.commit(files)
    assert offsets(table_of(lake)) == list(range(100))
    assert not list(lake.rglob(f"*{plan.run}*.parquet"))


@pytest.mark.parametrize("attempts", [1, 8])
def test_commit_when_its_request_is_repeated_then_the_conflict_with_itself_is_a_success(
    tmp_path: Path, attempts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, lake = source_with(tmp_path / "logs", 0), tmp_path / "lake"
    plan = plan_table("orders", folder_scan(source), destination_of(lake), ExportOptions())
    files = [file for task in plan.tasks for file in task.run_task()]
    commit_table = SqlCatalog.commit_table

    def repeated(*arguments: Any) -> None:
        commit_table(*arguments)
        raise CommitFailedException("409")  # of the same request once more, as its answer was lost

    monkeypatch.setattr("kafkafmt.export.iceberg._ATTEMPTS", attempts)
    with monkeypatch.context() as patched:
        patched.setattr(SqlCatalog, "commit_table", repeated)
        plan.commit(files)
    assert offsets(table_of(lake)) == list(range(100))
    assert export(source, lake)[0].rows == 0


def test_export_when_the_table_has_other_names_of_its_partition_fields_then_continues(tmp_path: Path) -> None:
    source, lake = source_with(tmp_path / "logs", 0), tmp_path / "lake"
    export(source, lake, "hour(timestamp)")
    table_of(lake).update_spec().rename_field("timestamp_hour", "by_hour").commit()
    source_with(source, 100)
    assert export(source, lake)[0].rows == 100
    assert offsets(table_of(lake)) == list(range(200))
    assert table_of(lake).spec().fields[0].name == "by_hour"


def test_commit_when_the_partitioning_has_changed_meanwhile_then_is_a_conflict(tmp_path: Path) -> None:
    source, lake = source_with(tmp_path / "logs", 0), tmp_path / "lake"
    export(source, lake, "hour(timestamp)")
    source_with(source, 100)
    plan = plan_table("orders", folder_scan(source), destination_of(lake), ExportOptions())
    files = [file for task in plan.tasks for file in task.run_task()]
    with table_of(lake).update_spec() as spec:
        spec.remove_field("timestamp_hour")
        spec.add_identity("partition")
    with pytest.raises(TableConflictError, match="it has changed the partitioning"):
        plan.commit(files)
    assert offsets(table_of(lake)) == list(range(100))


def test_catalog_when_it_is_not_configured_then_the_error_names_it(tmp_path: Path) -> None:
    source = folder_scan(source_with(tmp_path / "logs", 0))
    destination = Destination("raw", "iceberg", catalog="nowhere")
    (report,) = run_export(source, destination, ExportOptions())
    assert isinstance(report.error, ExportError)
    assert str(report.error).startswith(
        "catalog nowhere: expected a uri such as sqlite:////lake/catalog.db in "
    )


def test_catalog_when_it_has_no_warehouse_then_the_error_says_so(tmp_path: Path) -> None:
    source = folder_scan(source_with(tmp_path / "logs", 0))
    destination = Destination("raw", "iceberg", options={"uri": f"sqlite:///{tmp_path}/catalog.db"})
    (report,) = run_export(source, destination, ExportOptions())
    assert str(report.error).startswith(
        "raw.orders: expected a warehouse such as file:///lake among the catalog"
    )


def present(lake: Path) -> Sequence[int]:
    catalog = load_catalog(None, **options_of(lake))
    return offsets(table_of(lake)) if catalog.table_exists(("raw", "orders")) else []


def ensure_no_file_is_left(lake: Path) -> None:
    table = table_of(lake)
    folder = Path(table.location().removeprefix("file://"))
    used = {
        *table.inspect.all_files()["file_path"].to_pylist(),
        *table.inspect.all_manifests()["path"].to_pylist(),
    }
    used |= {one.manifest_list for one in table.snapshots()}
    left = {str(path) for name in ("*.parquet", "*.avro") for path in folder.rglob(name)}
    assert left == {path.removeprefix("file://") for path in used}


@pytest.mark.parametrize(
    ("tables", "kills"),
    [
        pytest.param(1, 6, marks=pytest.mark.full),
        # Several tables, because a run takes longer the more snapshots a table has.
        pytest.param(5, 20, marks=[pytest.mark.exhaustive, pytest.mark.slow, pytest.mark.timeout(900)]),
    ],
)
def test_export_when_killed_at_any_step_then_nothing_is_lost_or_doubled_and_no_file_is_left(
    tmp_path: Path, tables: int, kills: int
) -> None:
    preload(__name__)
    source, chance = tmp_path / "logs", random.Random(kills)
    counted = tmp_path / "counted"
    steps = run_until_step(-1, STEPS_IN, export, source_with(source, 0), counted, "hour(timestamp)").steps
    for number in range(tables):
        kill_at_random_steps(tmp_path / f"lake-{number}", kills, steps, chance)


def kill_at_random_steps(folder: Path, kills: int, steps: int, chance: random.Random) -> None:
    """Kill exports of a growing source into a new table, and check the table after each of them."""
    source, lake = source_with(folder / "logs", 0), folder / "lake"
    end = killed = uncommitted = 0
    while killed < kills:
        end += 100
        step = chance.randrange(1, steps + steps // 10)
        killed += run_until_step(step, STEPS_IN, export, source, lake, "hour(timestamp)").was_killed
        found = present(lake)
        assert list(found) == list(range(len(found)))
        assert len(found) % 100 == 0
        uncommitted += len(found) < end
        source_with(source, end)
    assert uncommitted > kills // 4
    export(source, lake)
    assert present(lake) == list(range(end + 100))
    ensure_no_file_is_left(lake)
    table = Path(table_of(lake).location().removeprefix("file://"))
    assert not list((table / "_kafkafmt" / "runs").iterdir())


@pytest.mark.full
def test_export_when_the_warehouse_is_on_s3_then_the_settings_of_the_catalog_reach_it(
    tmp_path: Path, s3_options: dict[str, str], s3: FileSystem
) -> None:
    s3.create_dir("lake")
    options = {
        "type": "sql",
        "uri": f"sqlite:///{tmp_path}/catalog.db",
        "warehouse": "s3://lake/tables",
        "s3.endpoint": f"http://{s3_options['endpoint_override']}",
        "s3.region": s3_options["region"],
        "s3.access-key-id": s3_options["access_key"],
        "s3.secret-access-key": s3_options["secret_key"],
    }
    destination = Destination("raw", "iceberg", options)
    for first in (0, 100):
        source = folder_scan(source_with(tmp_path / "logs", first))
        (report,) = run_export(source, destination, ExportOptions(parse_partitioning("hour(timestamp)")))
        assert (report.rows, report.error) == (100, None)
    assert offsets(load_catalog(None, **options).load_table(("raw", "orders"))) == list(range(200))
