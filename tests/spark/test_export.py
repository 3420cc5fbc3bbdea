"""Exports on Spark: tables as those of the local engine, whatever happens to tasks, executors and the driver."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING
from zipfile import ZipFile

import deltalake
import pytest

from child_processes import started
from export import scans
from export.exporting import places, read
from export.scans import folder_scan, write_log
from export.test_iceberg import destination_of, offsets, table_of
from kafkafmt.export.partitioning import parse_partitioning
from kafkafmt.export.plan import ExportOptions
from kafkafmt.export.tables import Destination
from kafkafmt.spark import export

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.xdist_group("spark")]
JOB = Path(__file__).parent / "jobs" / "export_killed.py"
KILLER = JOB.parent / "killer"


@pytest.fixture(scope="module", autouse=True)
def scans_on_executors(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Ship the scan of these tests, and keep it off this process's path, where it would hide `tests/export`."""
    path = tmp_path_factory.mktemp("scans") / "scans.zip"
    with ZipFile(path, "w") as archive:
        archive.writestr("export/__init__.py", "")
        archive.write(scans.__file__, "export/scans.py")
    search_path = sys.path.copy()
    spark.sparkContext.addPyFile(str(path))
    sys.path[:] = search_path


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
        rows = export(spark, folder_scan(source), destination, options).collect()
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
    rows = export(spark, folder_scan(source), str(lake), format="delta").collect()
    found = {row["topic"]: row for row in rows}
    assert found["users"]["status"] == "exported"
    assert "CRC" in found["orders"]["error"]
    assert not list((lake / "orders").rglob("*.parquet"))


def test_export_when_mode_is_upsert_then_the_table_has_the_latest_row_of_each_key(
    spark: SparkSession, tmp_path: Path
) -> None:
    source, lake = tmp_path / "logs", tmp_path / "lake"
    for first in (0, 200):
        write_log(source, "orders-0", first, 200)
        rows = export(
            spark, folder_scan(source), Destination(str(lake), "delta"), ExportOptions(mode="upsert")
        ).collect()
        assert [row["error"] for row in rows] == [None]
    table = read(lake / "orders", "delta")
    assert sorted(table["offset"].to_pylist()) == list(range(393, 400))


def job(*arguments: object, errors: int = subprocess.PIPE) -> AbstractContextManager[subprocess.Popen[str]]:
    paths = [str(JOB.parents[2]), os.environ.get("PYTHONPATH", "")]
    environment = {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
    return started(
        [sys.executable, JOB, *arguments],
        stdout=subprocess.PIPE,
        stderr=errors,
        text=True,
        env={**os.environ, "PYTHONPATH": ":".join(paths), **environment},
        start_new_session=True,
    )


def files_left(table: Path, committed: set[str]) -> set[str]:
    return {path.name for path in table.rglob("*.parquet*") if "_delta_log" not in path.parts} - committed


@pytest.mark.full
def test_export_when_an_executor_is_killed_then_each_record_is_in_the_table_once(tmp_path: Path) -> None:
    source, lake, marker = write_logs(tmp_path / "logs"), tmp_path / "lake", tmp_path / "killed"
    with job(source, lake, "delta", "local-cluster[2,1,1024]", KILLER, marker) as run:
        output, errors = run.communicate()
    assert marker.exists()
    assert {row["topic"]: row["records"] for row in json.loads(output)} == {"orders": 600, "users": 200}, (
        errors
    )
    table = read(lake / "orders", "delta")
    assert places(table) == [("orders", partition, offset) for partition in range(3) for offset in range(200)]
    names = {Path(path).name for path in deltalake.DeltaTable(lake / "orders").file_uris()}
    assert not files_left(lake / "orders", names)


@pytest.mark.full
def test_export_when_the_driver_is_killed_then_the_next_one_has_each_record_once_and_no_file_is_left(
    spark: SparkSession, tmp_path: Path
) -> None:
    source, lake = tmp_path / "logs", tmp_path / "lake"
    for partition in range(8):
        write_log(source, f"orders-{partition}", 0, 50_000)
    with job(source, lake, "delta", "local[2]", errors=subprocess.DEVNULL) as run:
        while run.poll() is None and not list(lake.rglob("part-*.parquet")):
            time.sleep(0.01)
        os.killpg(run.pid, signal.SIGKILL)
    assert deltalake.DeltaTable(lake / "orders").version() == 0
    assert list(lake.rglob("part-*.parquet"))
    (row,) = export(spark, folder_scan(source), str(lake), format="delta").collect()
    assert (row["records"], row["error"]) == (400_000, None)
    names = {Path(path).name for path in deltalake.DeltaTable(lake / "orders").file_uris()}
    assert not files_left(lake / "orders", names)
