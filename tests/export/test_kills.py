"""Exports that are killed at any step, and two at once: no record is lost or doubled, and no file is left."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import sys
from collections import Counter
from multiprocessing.context import ForkServerContext
from pathlib import Path
from types import FrameType
from typing import Any

import deltalake
import pyarrow.dataset as ds
import pytest

from export.exporting import export, read
from export.scans import folder_scan, write_log
from kafkafmt.export.errors import TableConflictError
from kafkafmt.export.plan import ExportOptions, plan_table
from kafkafmt.export.tables import Destination

_STEPS_IN = ("/kafkafmt/export/", "/deltalake/")


def export_until_step(source: Path, target: Path, kind: str, step: int, count: Any) -> None:
    """Export, and kill this process at a call or return in the engine or in deltalake."""

    def profile(frame: FrameType, event: str, argument: object) -> None:
        if any(name in frame.f_code.co_filename for name in _STEPS_IN):
            count.value += 1
            if count.value == step:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.setprofile(profile)
    export(source, target, kind, partition_by="hour(timestamp)")
    sys.setprofile(None)


def run_until_step(context: ForkServerContext, source: Path, target: Path, kind: str, step: int) -> int:
    """Return the number of steps that were run."""
    count = context.Value("q", 0)
    process = context.Process(target=export_until_step, args=(source, target, kind, step, count))
    process.start()
    process.join()
    assert process.exitcode in (0, -signal.SIGKILL)
    return int(count.value)


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
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    source, target, chance = tmp_path / "logs", tmp_path / "lake", random.Random(kills)
    table = target / "orders"
    steps = run_until_step(context, source_with(source, 0), tmp_path / "counted", kind, -1)
    assert steps > 100
    killed = 0
    for number in range(kills):
        end = (number + 1) * 100
        run_until_step(context, source, target, kind, chance.randrange(1, steps + steps // 10))
        found = offsets(table, kind)
        killed += len(found) < end
        assert Counter(found) == Counter(set(found))
        if kind == "delta":  # a commit is seen as a whole
            assert found == list(range(len(found)))
            assert len(found) % 100 == 0
        source_with(source, end)
    assert killed > kills // 4
    export(source, target, kind, partition_by="hour(timestamp)")
    assert offsets(table, kind) == list(range((kills + 1) * 100))
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
