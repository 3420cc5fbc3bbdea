"""Export the logs of a test, and read the table back with another library."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.dataset as ds

from export.scans import folder_scan
from kafkafmt.export.partitioning import parse_partitioning
from kafkafmt.export.plan import ExportOptions
from kafkafmt.export.running import TableReport, run_export
from kafkafmt.export.tables import Destination


def export(source: Path, target: Path, kind: str = "parquet", **options: Any) -> list[TableReport]:
    scan = folder_scan(source, options.pop("type", None))
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
