"""Exports to tables, which other libraries read back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from tests.export.scans import FolderScan, write_log

from kafkafmt.export.partitioning import parse_partitioning
from kafkafmt.export.plan import ExportOptions
from kafkafmt.export.running import TableReport, run_export
from kafkafmt.export.tables import Destination


def export(source: Path, target: Path, kind: str = "parquet", **options: Any) -> list[TableReport]:
    scan = FolderScan(source, options.pop("type", None))
    destination = Destination(str(target), kind, one_table=options.pop("one_table", False))
    if "partition_by" in options:
        options["partition_by"] = parse_partitioning(options["partition_by"])
    reports = list(run_export(scan, destination, ExportOptions(**options)))
    for report in reports:
        if report.error is not None:
            raise report.error
    return reports


def read(table: Path, kind: str) -> pa.Table:
    if kind == "delta":
        return deltalake.DeltaTable(table).to_pyarrow_table()
    return ds.dataset(table, partitioning="hive").to_table()


def places(table: pa.Table, prefix: str = "") -> list[tuple[str, int, int]]:
    rows = table.select([prefix + name for name in ("topic", "partition", "offset")])
    return sorted(tuple(row.values()) for row in rows.to_pylist())


@pytest.mark.parametrize("kind", ["parquet", "delta"])
@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("partition_by", ["", "topic,hour(timestamp)", "partition, month(timestamp)"])
def test_export_when_it_runs_again_after_new_records_then_each_is_in_the_table_once(
    tmp_path: Path, kind: str, processes: int, partition_by: str
) -> None:
    source, target = tmp_path / "logs", tmp_path / "lake"
    options = {"processes": processes}
    if partition_by:
        options["partition_by"] = partition_by
    for partition in range(3):
        write_log(source, f"orders-{partition}", 0, 1000)
    assert [report.rows for report in export(source, target, kind, **options)] == [3000]
    assert [report.rows for report in export(source, target, kind, **options)] == [0]
    write_log(source, "orders-1", 1000, 500)
    write_log(source, "users-0", 0, 10)
    assert {report.topic: report.rows for report in export(source, target, kind, **options)} == {
        "orders": 500,
        "users": 10,
    }
    ends = {0: 1000, 1: 1500, 2: 1000}
    table = read(target / "orders", kind)
    assert places(table) == [("orders", one, offset) for one, end in ends.items() for offset in range(end)]
    values = dict(zip(table["offset"].to_pylist(), table["value"].to_pylist(), strict=True))
    assert values[1234] == b"value 1234"
    assert read(target / "users", kind).num_rows == 10
