"""Exports that are killed at any step, and two at once: no record is lost or doubled, and no file is left."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import deltalake
import pyarrow.dataset as ds
import pytest

from export.exporting import export, read
from export.kills import preload, run_until_step
from export.scans import folder_scan, write_log
from kafkafmt.export.errors import ExportError, TableConflictError
from kafkafmt.export.plan import ExportOptions, plan_table
from kafkafmt.export.tables import Destination, TableCommit

COMMAND = str(Path(sys.executable).with_name("kafkafmt"))
_STEPS_IN = ("/kafkafmt/export/", "/deltalake/")


def export_by_hour(source: Path, target: Path, kind: str) -> None:
    export(source, target, kind, partition_by="hour(timestamp)")


def offsets(table: Path, kind: str) -> list[int]:
    if not any(table.glob("hour*" if kind == "parquet" else "_delta_log/*.json")) and kind == "delta":
        return []
    if kind == "parquet" and not list(table.glob("timestamp_hour=*/*.parquet")):
        return []
    return sorted(read(table, kind)["offset"].to_pylist())


@pytest.mark.parametrize(
    "kills",
    [6, pytest.param(100, marks=[pytest.mark.exhaustive, pytest.mark.slow, pytest.mark.timeout(900)])],
)
@pytest.mark.parametrize("kind", ["parquet", "delta"])
def test_export_when_killed_at_any_step_then_nothing_is_lost_or_doubled_and_no_file_is_left(
    tmp_path: Path, kind: str, kills: int
) -> None:
    preload(__name__)
    source, target, chance = tmp_path / "logs", tmp_path / "lake", random.Random(kills)
    table = target / "orders"
    counted = tmp_path / "counted"
    steps = run_until_step(-1, _STEPS_IN, export_by_hour, source_with(source, 0), counted, kind).steps
    assert steps > 100
    end = killed = uncommitted = 0
    while killed < kills:
        end += 100
        step = chance.randrange(1, steps + steps // 10)
        killed += run_until_step(step, _STEPS_IN, export_by_hour, source, target, kind).was_killed
        found = offsets(table, kind)
        uncommitted += len(found) < end
        assert Counter(found) == Counter(set(found))
        if kind == "delta":  # a commit is seen as a whole
            assert found == list(range(len(found)))
            assert len(found) % 100 == 0
        source_with(source, end)
    assert uncommitted > kills // 4
    export_by_hour(source, target, kind)
    assert offsets(table, kind) == list(range(end + 100))
    ensure_no_file_is_left(table, kind)


def ensure_no_file_is_left(table: Path, kind: str) -> None:
    files = {
        str(path.relative_to(table)) for path in table.rglob("*.parquet*") if "_delta_log" not in str(path)
    }
    known = (
        deltalake.DeltaTable(table).file_uris()
        if kind == "delta"
        else ds.dataset(table, partitioning="hive").files
    )
    assert files == {str(Path(one).relative_to(table)) for one in known}
    assert not list((table / "_kafkafmt" / "runs").iterdir())


@pytest.mark.parametrize(
    "kills",
    [
        pytest.param(2, marks=pytest.mark.full),
        pytest.param(20, marks=[pytest.mark.exhaustive, pytest.mark.slow, pytest.mark.timeout(900)]),
    ],
)
@pytest.mark.parametrize("kind", ["parquet", "delta"])
def test_command_when_it_and_its_processes_are_killed_at_any_time_then_nothing_is_lost_or_doubled(
    tmp_path: Path, kind: str, kills: int
) -> None:
    source, target, chance = tmp_path / "logs", tmp_path / "lake", random.Random(kills)
    table = target / "orders"
    program = [COMMAND, "export", str(source), str(target), "--format", kind]
    program += ["--partition-by", "hour(timestamp)", "--target-file-size", "64K", "--processes", "2"]
    end = killed = 0
    seconds = 0.0
    while killed < kills:
        for partition in range(3):
            write_log(source, f"orders-{partition}", end, 2000)
        end += 2000
        start = time.monotonic()
        with subprocess.Popen(
            program, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True
        ) as running:
            try:
                running.wait(chance.uniform(0.3, 1.1) * seconds if seconds else None)
                assert running.returncode == 0, running.stderr and running.stderr.read()
                seconds = time.monotonic() - start
            except subprocess.TimeoutExpired:
                os.killpg(running.pid, signal.SIGKILL)
                killed += 1
        found = Counter(offsets(table, kind))
        assert set(found.values()) <= {1, 2, 3}
    subprocess.run(program, check=True, capture_output=True)
    assert offsets(table, kind) == sorted(list(range(end)) * 3)
    ensure_no_file_is_left(table, kind)


def source_with(folder: Path, first: int) -> Path:
    write_log(folder, "orders-0", first, 100)
    return folder


@pytest.mark.parametrize("kind", ["parquet", "delta"])
def test_export_when_another_one_runs_then_is_refused_and_the_other_commits(
    tmp_path: Path, kind: str
) -> None:
    source, target = source_with(tmp_path / "logs", 0), tmp_path / "lake"
    plan = plan_table("orders", folder_scan(source), Destination(str(target), kind), ExportOptions())
    with pytest.raises(TableConflictError, match="another export writes to this table"):
        export(source, target, kind)
    plan.commit([file for task in plan.tasks for file in task.run_task()])
    assert export(source, target, kind)[0].rows == 0
    assert read(target / "orders", kind)["offset"].to_pylist() == list(range(100))


@pytest.mark.parametrize("kind", ["parquet", "delta"])
def test_commit_when_the_lease_was_lost_and_another_has_committed_then_is_refused_and_its_files_are_removed(
    tmp_path: Path, kind: str
) -> None:
    source, target = source_with(tmp_path / "logs", 0), tmp_path / "lake"
    plan = plan_table("orders", folder_scan(source), Destination(str(target), kind), ExportOptions())
    files = [file for task in plan.tasks for file in task.run_task()]
    lease = plan.table._lease
    os.close(lease._descriptor)  # as if the file system had no locks
    lease._descriptor = -1
    export(source, target, kind)
    with pytest.raises(TableConflictError, match="meanwhile"):
        plan.commit(files)
    assert read(target / "orders", kind)["offset"].to_pylist() == list(range(100))
    assert not any((target / "orders").rglob(f"*{plan.run}*.parquet*"))


@pytest.mark.parametrize("moment", ["before the table is read", "after it"])
def test_commit_when_another_run_has_removed_its_files_meanwhile_then_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    source, to = source_with(tmp_path / "logs", 0), Destination(str(tmp_path / "lake"), "delta")
    plan = plan_table("orders", folder_scan(source), to, ExportOptions())
    files = [file for task in plan.tasks for file in task.run_task()]
    os.close(plan.table._lease._descriptor)  # as if the file system had no locks
    plan.table._lease._descriptor = -1
    once = deltalake.DeltaTable.create_write_transaction

    def take_over() -> None:
        monkeypatch.setattr(deltalake.DeltaTable, "create_write_transaction", once)
        plan_table("orders", folder_scan(source), to, ExportOptions()).abort([])

    def suspended(*arguments: object, **named: object) -> None:
        take_over()
        once(*arguments, **named)

    if moment == "after it":
        monkeypatch.setattr(deltalake.DeltaTable, "create_write_transaction", suspended)
    else:
        take_over()
    with pytest.raises(TableConflictError, match="meanwhile"):
        plan.commit(files)
    assert not list((tmp_path / "lake" / "orders").rglob(f"*{plan.run}*.parquet"))
    assert export(source, tmp_path / "lake", "delta")[0].rows == 100
    assert offsets(tmp_path / "lake" / "orders", "delta") == list(range(100))


def test_commit_when_its_request_is_repeated_then_the_conflict_with_itself_is_a_success(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = source_with(tmp_path / "logs", 0), tmp_path / "lake"
    plan = plan_table("orders", folder_scan(source), Destination(str(target), "delta"), ExportOptions())
    files = [file for task in plan.tasks for file in task.run_task()]
    once = deltalake.DeltaTable.create_write_transaction

    def twice(table: deltalake.DeltaTable, *arguments: object, **named: object) -> None:
        once(table, *arguments, **named)  # its answer is lost
        once(table, *arguments, **named)

    monkeypatch.setattr(deltalake.DeltaTable, "create_write_transaction", twice)
    plan.commit(files)
    assert offsets(target / "orders", "delta") == list(range(100))
    assert export(source, target, "delta")[0].rows == 0


def test_commit_when_the_log_cannot_be_written_then_the_outcome_is_not_known_and_the_next_run_cleans_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = source_with(tmp_path / "logs", 0), tmp_path / "lake"
    plan = plan_table("orders", folder_scan(source), Destination(str(target), "delta"), ExportOptions())
    files = [file for task in plan.tasks for file in task.run_task()]

    def fail(*arguments: object, **named: object) -> None:
        raise deltalake.exceptions.CommitFailedError("Error in the log store")

    with monkeypatch.context() as patched:
        patched.setattr(deltalake.DeltaTable, "create_write_transaction", fail)
        with pytest.raises(ExportError, match=r"not known whether it was committed: .*log store"):
            plan.commit(files)
    assert list((target / "orders").rglob(f"*{plan.run}*.parquet"))
    assert export(source, target, "delta")[0].rows == 100
    ensure_no_file_is_left(target / "orders", "delta")


def test_export_when_a_run_was_killed_after_its_commit_and_others_have_committed_since_then_its_files_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = source_with(tmp_path / "logs", 0), tmp_path / "lake"
    plan = plan_table("orders", folder_scan(source), Destination(str(target), "delta"), ExportOptions())
    plan.table.commit(
        TableCommit(
            plan.run, [file for task in plan.tasks for file in task.run_task()], {("orders", 0): 100}
        ),
        plan.state,
    )
    os.close(plan.table._lease._descriptor)  # as if it was killed
    for _ in range(3):
        table = deltalake.DeltaTable(target / "orders")
        table.alter.set_table_properties({"delta.appendOnly": "false"})
    monkeypatch.setattr("kafkafmt.export.delta._COMMITS_LOOKED_AT", 2)
    source_with(source, 100)
    assert export(source, target, "delta")[0].rows == 100
    assert offsets(target / "orders", "delta") == list(range(200))


def test_commit_when_a_staged_file_is_missing_then_nothing_is_committed(tmp_path: Path) -> None:
    source, target = source_with(tmp_path / "logs", 0), tmp_path / "lake"
    plan = plan_table("orders", folder_scan(source), Destination(str(target)), ExportOptions())
    files = [file for task in plan.tasks for file in task.run_task()]
    (staged,) = (target / "orders").rglob("*.staged")
    staged.unlink()
    with pytest.raises(TableConflictError, match="found no such file"):
        plan.commit(files)
    assert export(source, target)[0].rows == 100
