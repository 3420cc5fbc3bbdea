"""Exports to tables, which other libraries read back."""

from __future__ import annotations

from pathlib import Path

import pytest

from export.exporting import export, places, read
from export.scans import write_log

pytestmark = pytest.mark.slow


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
