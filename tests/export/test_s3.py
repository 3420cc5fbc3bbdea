"""Tables in an object store, where no lock tells whether another export runs: leases do."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlencode

import deltalake
import pyarrow.dataset as ds
import pytest
from pyarrow.fs import FileSelector, FileSystem, FileType

from export.scans import folder_scan, write_log
from file_systems import BUCKET
from kafkafmt.export import Destination, ExportError, ExportOptions, TableConflictError
from kafkafmt.export.plan import plan_table
from kafkafmt.export.running import run_export
from kafkafmt.export.stores import delta_options
from kafkafmt.storage import RemotePath, RemoteStorage, Storages

pytestmark = pytest.mark.full


def destination(name: str, kind: str, s3_options: dict[str, str]) -> Destination:
    uri = f"s3://{BUCKET}/{name}"
    if kind == "parquet":
        return Destination(f"{uri}?{urlencode(s3_options)}")
    options = {
        "aws_region": s3_options["region"],
        "aws_access_key_id": s3_options["access_key"],
        "AWS_SECRET_ACCESS_KEY": s3_options["secret_key"],
        "aws_endpoint_url": f"http://{s3_options['endpoint_override']}",
        "aws_allow_http": "true",
    }
    return Destination(uri, kind, options)


def export(source: Path, to: Destination) -> int:
    (report,) = run_export(folder_scan(source), to, ExportOptions("hour(timestamp)"))
    if report.error is not None:
        raise report.error
    return report.rows


def offsets(name: str, kind: str, s3_options: dict[str, str], s3: FileSystem) -> list[int]:
    if kind == "delta":
        folder = Storages(s3_options).locate(f"s3://{BUCKET}/{name}/orders")
        table = deltalake.DeltaTable(f"s3://{BUCKET}/{name}/orders", storage_options=delta_options(folder))
        return sorted(table.to_pyarrow_table()["offset"].to_pylist())
    return sorted(ds.dataset(f"{BUCKET}/{name}/orders", filesystem=s3).to_table()["offset"].to_pylist())


def runs(name: str, s3: FileSystem) -> list[str]:
    found = s3.get_file_info(FileSelector(f"{BUCKET}/{name}", recursive=True, allow_not_found=True))
    return [one.path for one in found if "/runs/" in one.path and one.type == FileType.File]


@pytest.mark.parametrize("kind", ["parquet", "delta"])
def test_export_when_it_runs_again_after_new_records_then_each_is_in_the_table_once(
    tmp_path: Path, kind: str, s3_options: dict[str, str], s3: FileSystem
) -> None:
    to, source = destination(f"again-{kind}", kind, s3_options), tmp_path / "logs"
    for first in (0, 100):
        write_log(source, "orders-0", first, 100)
        assert export(source, to) == 100
    assert export(source, to) == 0
    assert offsets(f"again-{kind}", kind, s3_options, s3) == list(range(200))
    assert not runs(f"again-{kind}", s3)


# Not for Delta: its library reads the history without releasing the GIL, and the S3 server runs in this process.
def test_export_when_another_one_runs_or_was_killed_then_is_refused_or_removes_its_files(
    tmp_path: Path, s3_options: dict[str, str], s3: FileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kafkafmt.export.runs.DEAD_AFTER_SECONDS", 2.0)
    monkeypatch.setattr("kafkafmt.export.runs.RENEW_SECONDS", 0.2)
    name = "lease"
    to, source = destination(name, "parquet", s3_options), tmp_path / "logs"
    write_log(source, "orders-0", 0, 100)
    plan = plan_table("orders", folder_scan(source), to, ExportOptions("hour(timestamp)"))
    files = [file for task in plan.tasks for file in task.run_task()]
    with pytest.raises(TableConflictError, match="another export writes"):
        export(source, to)
    lease = plan.table._lease
    lease._ended.set()  # as if it was killed, or stopped for long
    lease._thread.join()
    assert export(source, to) == 100
    with pytest.raises(TableConflictError):
        plan.commit(files)
    assert offsets(name, "parquet", s3_options, s3) == list(range(100))
    assert not runs(name, s3)


@pytest.mark.parametrize("moment", ["before its manifest is written", "after it"])
def test_commit_when_the_run_is_suspended_and_another_takes_over_then_each_record_is_in_the_table_once(
    tmp_path: Path,
    s3_options: dict[str, str],
    s3: FileSystem,
    monkeypatch: pytest.MonkeyPatch,
    moment: str,
) -> None:
    monkeypatch.setattr("kafkafmt.export.runs.DEAD_AFTER_SECONDS", 2.0)
    monkeypatch.setattr("kafkafmt.export.runs.RENEW_SECONDS", 0.2)
    name = f"suspended {moment}"
    to, source = destination(name, "parquet", s3_options), tmp_path / "logs"
    write_log(source, "orders-0", 0, 100)
    assert export(source, to) == 100
    write_log(source, "orders-0", 100, 100)
    plan = plan_table("orders", folder_scan(source), to, ExportOptions())
    files = [file for task in plan.tasks for file in task.run_task()]
    plan.table._lease._ended.set()  # a suspended process does not renew its lease
    plan.table._lease._thread.join()
    others = []
    write_new = RemoteStorage.write_new

    def suspended(storage: RemoteStorage, path: RemotePath, chunks: list[bytes]) -> None:
        monkeypatch.setattr(RemoteStorage, "write_new", write_new)
        if moment == "after it":
            storage.write_new(path, chunks)
        others.append(plan_table("orders", folder_scan(source), to, ExportOptions()))
        if moment != "after it":
            storage.write_new(path, chunks)

    monkeypatch.setattr(RemoteStorage, "write_new", suspended)
    with pytest.raises(ExportError, match="not known whether it was committed: this export was suspended"):
        plan.commit(files)
    (other,) = others
    assert bool(other.tasks) == (moment != "after it")
    other.abort([])  # it fails: what it has decided stays
    assert export(source, to) == (0 if moment == "after it" else 100)
    assert offsets(name, "parquet", s3_options, s3) == list(range(200))
    assert not runs(name, s3)
