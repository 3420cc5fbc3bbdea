"""Exports on Spark: tables as those of the local engine, whatever happens to tasks, executors and the driver."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from zipfile import ZipFile

import pytest

from export import scans
from export.exporting import places, read
from export.scans import FolderScan, write_log
from export.test_iceberg import destination_of, offsets, table_of
from kafkafmt.export.partitioning import parse_partitioning
from kafkafmt.export.plan import ExportOptions
from kafkafmt.export.tables import Destination
from kafkafmt.spark import export

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark]


@pytest.fixture(scope="module", autouse=True)
def scans_on_executors(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Ship the scan of these tests."""
    path = tmp_path_factory.mktemp("scans") / "scans.zip"
    with ZipFile(path, "w") as archive:
        archive.writestr("export/__init__.py", "")
        archive.write(scans.__file__, "export/scans.py")
    spark.sparkContext.addPyFile(str(path))


def write_logs(folder: Path, first: int = 0) -> Path:
    for partition in range(3):
        write_log(folder, f"orders-{partition}", first, 200)
    write_log(folder, "users-0", first, 200)
    return folder


@pytest.mark.parametrize("kind", ["parquet", "delta", "iceberg"])
def test_export_when_it_runs_again_after_new_records_then_each_is_in_the_table_once(
    spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    lake = tmp_path / "lake"
    destination = destination_of(lake) if kind == "iceberg" else Destination(str(lake), kind)
    options = ExportOptions(parse_partitioning("hour(timestamp)"))
    for first in (0, 200):
        source = write_logs(tmp_path / "logs", first)
        rows = export(spark, FolderScan(source), destination, options).collect()
        found = {row["topic"]: (row["status"], row["records"], row["error"]) for row in rows}
        assert found == {"orders": ("exported", 600, None), "users": ("exported", 200, None)}
    if kind == "iceberg":
        assert offsets(table_of(lake)) == sorted(list(range(400)) * 3)
    else:
        assert places(read(lake / "orders", kind)) == [
            ("orders", partition, offset) for partition in range(3) for offset in range(400)
        ]


def test_export_when_a_log_is_damaged_then_its_table_fails_and_the_others_are_exported(
    spark: SparkSession, tmp_path: Path
) -> None:
    source, lake = write_logs(tmp_path / "logs"), tmp_path / "lake"
    (log,) = (source / "orders-1").iterdir()
    content = bytearray(log.read_bytes())
    content[-10] ^= 1
    log.write_bytes(content)
    rows = export(spark, FolderScan(source), str(lake), format="delta").collect()
    found = {row["topic"]: row for row in rows}
    assert found["users"]["status"] == "exported"
    assert "CRC" in found["orders"]["error"]
    assert not list((lake / "orders").rglob("*.parquet"))
