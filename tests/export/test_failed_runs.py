"""Runs that fail, in a library, in a process, or in between: the next run is not hindered, and removes what is left."""

from __future__ import annotations

import json
import os
import shutil
import signal
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest
from deltalake.exceptions import DeltaError
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException, RESTError
from pyiceberg.table import DataScan

from export.exporting import export, places, read
from export.scans import folder_scan, write_log
from export.test_iceberg import destination_of, table_of
from file_limits import file_size_limit
from kafkafmt.export.compaction import compact
from kafkafmt.export.errors import ExportError, TableConflictError
from kafkafmt.export.plan import ExportOptions, ScanSource, plan_table
from kafkafmt.export.running import run_export
from kafkafmt.export.runs import RunLease
from kafkafmt.export.tables import Destination
from kafkafmt.scanning.tasks import OffsetRange, ScanTask
from kafkafmt.types import TopicPartition

KINDS = ["parquet", "delta", "iceberg"]
SCHEMA = bytes(pa.schema([("offset", pa.int64())]).serialize())


def destination(lake: Path, kind: str) -> Destination:
    return destination_of(lake) if kind == "iceberg" else Destination(str(lake), kind)


def fail_with(error: Exception) -> Callable[..., Any]:
    def fail(*arguments: Any, **named: Any) -> Any:
        raise error

    return fail


def take_and_fail(take: Callable[[RunLease], None]) -> Callable[[RunLease], None]:
    def taken(lease: RunLease) -> None:
        take(lease)
        raise OSError("no answer")

    return taken


def test_export_when_the_folder_of_a_partition_was_removed_then_continues(tmp_path: Path) -> None:
    source, target = tmp_path / "logs", tmp_path / "lake"
    for partition in (0, 1):
        write_log(source, f"orders-{partition}", 0, 10)
    export(source, target, partition_by="partition")
    shutil.rmtree(target / "orders" / "partition=0")
    write_log(source, "orders-1", 10, 10)
    assert export(source, target)[0].rows == 10
    assert places(read(target / "orders", "parquet")) == [("orders", 1, offset) for offset in range(20)]


@pytest.mark.parametrize("kind", KINDS)
def test_export_when_it_fails_while_it_begins_then_another_one_can(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, lake = tmp_path / "logs", tmp_path / "lake"
    write_log(source, "orders-0", 0, 10)
    (report,) = run_export(folder_scan(source), destination(lake, kind), ExportOptions())
    assert report.error is None
    write_log(source, "orders-0", 10, 10)
    with monkeypatch.context() as patched:
        patched.setattr("kafkafmt.export.runs.RunLease.take", take_and_fail(RunLease.take))
        (report,) = run_export(folder_scan(source), destination(lake, kind), ExportOptions())
        assert "no answer" in str(report.error)
    (report,) = run_export(folder_scan(source), destination(lake, kind), ExportOptions())
    assert (report.rows, report.error) == (10, None)


@pytest.mark.parametrize("kind", KINDS)
def test_export_when_the_disk_is_full_then_removes_its_files_and_exports_the_other_tables(
    tmp_path: Path, kind: str
) -> None:
    source, lake = tmp_path / "logs", tmp_path / "lake"
    for topic in ("orders", "users"):
        write_log(source, f"{topic}-0", 0, 10)
    write_log(source, "orders-0", 10, 50_000, value="value {0:x}")
    to = destination(lake, kind)
    with file_size_limit(100_000):
        reports = {report.topic: report for report in run_export(folder_scan(source), to, ExportOptions())}
    assert "File too large" in str(reports["orders"].error)
    assert reports["orders"].rows == 0
    assert (reports["users"].rows, reports["users"].error) == (10, None)
    assert not [path for path in lake.rglob("part-*") if "users" not in str(path)]


def test_export_when_a_partition_is_too_long_for_a_folder_then_the_error_names_the_column(
    tmp_path: Path,
) -> None:
    source, lake = tmp_path / "logs", tmp_path / "lake"
    write_log(source, "orders-0", 0, 10, value='{{"d": "' + "x" * 300 + '"}}')
    kind = pa.struct([("d", pa.string())])
    with pytest.raises(
        ExportError, match=r"column 'd': expected .* at most 255 bytes, found one of 302: 'd=xxx"
    ):
        export(source, lake, type=kind, partition_by="d")
    assert export(source, lake, "delta", type=kind, partition_by="d")[0].rows == 10


@pytest.mark.parametrize("method", ["transaction_version", "history"])
def test_export_when_deltalake_raises_then_the_report_of_its_table_has_the_error(
    tmp_path: Path, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, lake = tmp_path / "logs", tmp_path / "lake"
    for topic in ("orders", "users"):
        write_log(source, f"{topic}-0", 0, 10)
    export(source, lake, "delta")
    runs = lake / "orders" / "_kafkafmt" / "runs"
    runs.mkdir(exist_ok=True)
    (runs / f"{'0' * 32}.json").write_text("{}")  # of a killed run
    write_log(source, "orders-0", 10, 10)
    monkeypatch.setattr(deltalake.DeltaTable, method, fail_with(DeltaError("broken\nlog")))
    reports = list(run_export(folder_scan(source), destination(lake, "delta"), ExportOptions()))
    assert [report.topic for report in reports] == ["orders", "users"]
    assert isinstance(reports[0].error, ExportError)
    assert str(reports[0].error) == f"{lake / 'orders'}: broken log"


def test_compact_and_upsert_when_pyiceberg_raises_then_the_error_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, lake = tmp_path / "logs", tmp_path / "lake"
    options = ExportOptions(mode="upsert")
    write_log(source, "orders-0", 0, 10)
    (report,) = run_export(folder_scan(source), destination_of(lake), options)
    assert report.error is None
    write_log(source, "orders-0", 10, 10)
    monkeypatch.setattr(DataScan, "plan_files", fail_with(RESTError("no\nanswer")))
    (report,) = run_export(folder_scan(source), destination_of(lake), options)
    assert isinstance(report.error, ExportError)
    assert "raw.orders: RESTError: no answer" in str(report.error)
    with pytest.raises(ExportError, match=r"raw\.orders: RESTError: no answer"):
        compact(destination_of(lake), "orders")


@dataclass(frozen=True)
class _BrokenPart:
    """A part of a scan that raises, or whose process is killed, after its first rows were written."""

    part: ScanTask
    is_killed: bool

    @property
    def ranges(self) -> Mapping[TopicPartition, OffsetRange]:
        return self.part.ranges

    @property
    def size_in_bytes(self) -> int:
        return self.part.size_in_bytes

    def read(self, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        yield from self.part.read(columns)
        if self.is_killed:
            os.kill(os.getpid(), signal.SIGKILL)
        raise ValueError("damaged")


@dataclass(frozen=True)
class _BrokenScan:
    """A scan whose topic `orders` has broken parts."""

    scan: ScanSource
    is_killed: bool = False

    @property
    def schema(self) -> pa.Schema:
        return self.scan.schema

    @property
    def is_whole(self) -> bool:
        return self.scan.is_whole

    def present_ends(self) -> Mapping[TopicPartition, int]:
        return self.scan.present_ends()

    @property
    def folders(self) -> Sequence[Path]:
        return self.scan.folders

    def ensure_readable(self) -> None:
        self.scan.ensure_readable()

    def ranges(self) -> Mapping[TopicPartition, OffsetRange]:
        return self.scan.ranges()

    def continuing(
        self, ranges: Mapping[TopicPartition, OffsetRange], known: pa.Schema, *, keeps_types: bool = False
    ) -> ScanSource:
        return _BrokenScan(self.scan.continuing(ranges, known, keeps_types=keeps_types), self.is_killed)

    def of_topic(self, topic: str) -> ScanSource:
        found = self.scan.of_topic(topic)
        return _BrokenScan(found, self.is_killed) if topic == "orders" else found

    def tasks(self, split_bytes: int) -> Sequence[ScanTask]:
        return [_BrokenPart(part, self.is_killed) for part in self.scan.tasks(split_bytes)]


def test_export_when_a_process_is_killed_then_the_next_run_removes_its_files(tmp_path: Path) -> None:
    source, lake = tmp_path / "logs", tmp_path / "lake"
    write_log(source, "orders-0", 0, 10)
    with pytest.raises(ExportError, match="a process was killed"):
        list(
            run_export(
                _BrokenScan(folder_scan(source), is_killed=True),
                destination(lake, "delta"),
                ExportOptions(processes=2),
            )
        )
    left = list((lake / "orders").glob("*.parquet"))
    assert left
    assert export(source, lake, "delta")[0].rows == 10
    assert not [path for path in left if path.exists()]


@pytest.mark.parametrize("processes", [1, 2])
def test_export_when_a_table_fails_and_its_files_cannot_be_removed_then_the_others_are_exported(
    tmp_path: Path, processes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, lake = tmp_path / "logs", tmp_path / "lake"
    for topic in ("orders", "users"):
        write_log(source, f"{topic}-0", 0, 10)
    broken, options = _BrokenScan(folder_scan(source)), ExportOptions(processes=processes)
    with monkeypatch.context() as patched:
        patched.setattr("kafkafmt.export.delta.DeltaTable.abort", fail_with(OSError("no answer")))
        reports = {report.topic: report for report in run_export(broken, destination(lake, "delta"), options)}
    assert (str(reports["orders"].error), reports["users"].error) == ("damaged", None)
    assert list((lake / "orders" / "_kafkafmt" / "runs").glob("*.json"))
    assert [report.rows for report in export(source, lake, "delta")] == [10, 0]


def test_export_when_a_run_was_killed_while_it_wrote_its_file_then_the_next_one_removes_it(
    tmp_path: Path,
) -> None:
    source, lake = tmp_path / "logs", tmp_path / "lake"
    write_log(source, "orders-0", 0, 10)
    runs = lake / "orders" / "_kafkafmt" / "runs"
    runs.mkdir(parents=True)
    (runs / f".{'0' * 32}.json.1234.tmp").touch()
    assert export(source, lake, "delta")[0].rows == 10
    assert not list(runs.iterdir())


def test_commit_when_the_last_attempt_fails_then_is_a_conflict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, lake = tmp_path / "logs", tmp_path / "lake"
    write_log(source, "orders-0", 0, 100)
    plan = plan_table("orders", folder_scan(source), destination_of(lake), ExportOptions())
    files = [file for task in plan.tasks for file in task.run_task()]
    monkeypatch.setattr(SqlCatalog, "commit_table", fail_with(CommitFailedException("409")))
    with pytest.raises(TableConflictError, match="409"):
        plan.commit(files)
    assert not list(lake.rglob("*.parquet"))
    assert not list(lake.rglob("*.avro"))


@pytest.mark.parametrize(
    "damage",
    [
        {"run": None},
        {"run": "../.."},
        {"files": [{"path": "../users/other.parquet"}]},
        {"files": [{"path": "/other.parquet"}]},
        {"files": [{}]},
        {"offsets": []},
        {"offsets": {"orders": {"0": "10"}}},
        {"schema": 1},
        {"schema": ""},
        {"schema": b64encode(SCHEMA[:8] + bytes([255] * 8) + SCHEMA[16:]).decode()},
        {"schema": b64encode(SCHEMA.replace(b"\x40\0\0\0", b"\x80\0\0\0")).decode()},
        {"partition_by": [1]},
    ],
)
def test_export_when_a_manifest_is_damaged_then_only_its_table_fails_and_no_file_is_removed(
    tmp_path: Path, damage: dict[str, Any]
) -> None:
    source, target = tmp_path / "logs", tmp_path / "lake"
    for topic in ("orders", "users"):
        write_log(source, f"{topic}-0", 0, 10)
    export(source, target)
    (manifest,) = (target / "orders" / "_kafkafmt" / "commits").iterdir()
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), **damage}))
    before = {path.relative_to(target) for path in target.rglob("*.parquet")}
    write_log(source, "users-0", 10, 10)
    orders, users = run_export(folder_scan(source), Destination(str(target)), ExportOptions())
    assert isinstance(orders.error, ExportError)
    assert f"{manifest.name}: expected the manifest of an export, found other content" in str(orders.error)
    assert (users.rows, users.error) == (10, None)
    assert before < {path.relative_to(target) for path in target.rglob("*.parquet")}


def test_export_when_another_file_is_among_the_runs_of_an_iceberg_table_then_continues(
    tmp_path: Path,
) -> None:
    source, lake = tmp_path / "logs", tmp_path / "lake"
    for first in (0, 10):
        write_log(source, "orders-0", first, 10)
        (report,) = run_export(folder_scan(source), destination_of(lake), ExportOptions())
        assert (report.rows, report.error) == (10, None)
        (runs,) = lake.rglob("runs")
        (runs / "part.json").write_text("{}")
    assert table_of(lake).scan().to_arrow().num_rows == 20
