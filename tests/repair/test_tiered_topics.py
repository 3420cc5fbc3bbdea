"""Repair of a broker's log whose earlier segments are in tiered storage: what a broker needs to keep these."""

from __future__ import annotations

from pathlib import Path

import pytest

from kafkafmt.jobs.repair import RepairReport, repair
from log.samples import batches, put_segment

EPOCHS = ((0, 0), (2, 700), (4, 990))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A log directory with the local part of a log, from offset 1000 on. Its records have the leader epoch 4."""
    folder = tmp_path / "logs" / "orders-0"
    put_segment(folder, 1000, batches(1000, 1050, 5, partition_leader_epoch=4))
    put_segment(folder, 1050, batches(1050, 1080, 5, partition_leader_epoch=6))
    write_checkpoint(folder / "leader-epoch-checkpoint", *EPOCHS, (6, 1050))
    write_checkpoint(folder.parent / "log-start-offset-checkpoint", ("orders", 0, 0))
    return folder.parent


def write_checkpoint(path: Path, *entries: tuple[object, ...]) -> None:
    lines = [f"{len(entries)}", *(" ".join(map(str, one)) for one in entries)]
    path.write_text("\n".join(("0", *lines, "")))


def entries(path: Path) -> list[str]:
    return path.read_text().splitlines()[2:]


def repaired(source: Path) -> tuple[RepairReport, Path]:
    target = source.with_name("repaired")
    return repair(source, target), target


def test_leader_epochs_when_they_contradict_the_batches_then_those_of_tiered_storage_are_kept(
    source: Path,
) -> None:
    write_checkpoint(source / "orders-0" / "leader-epoch-checkpoint", *EPOCHS, (5, 1040))
    report, target = repaired(source)
    assert report.is_lossless
    assert entries(target / "orders-0" / "leader-epoch-checkpoint") == ["0 0", "2 700", "4 990", "6 1050"]


@pytest.mark.parametrize("has_log_start", [True, False])
def test_leader_epochs_when_unreadable_then_the_report_says_that_tiered_storage_may_lose_segments(
    source: Path, *, has_log_start: bool
) -> None:
    (source / "orders-0" / "leader-epoch-checkpoint").write_text("0\n4\n0 0\n")
    if not has_log_start:
        (source / "log-start-offset-checkpoint").unlink()
    report, target = repaired(source)
    assert report.is_lossless == (not has_log_start)
    (note,) = report.partitions[0].notes
    assert note.startswith("the leader epochs before offset 1000 are lost")
    assert ("if the topic is in tiered storage" in note) == (not has_log_start)
    assert entries(target / "orders-0" / "leader-epoch-checkpoint") == ["4 1000", "6 1050"]


def test_leader_epochs_when_missing_then_the_report_says_so_if_tiered_storage_has_segments(
    source: Path,
) -> None:
    (source / "orders-0" / "leader-epoch-checkpoint").unlink()
    report, _ = repaired(source)
    assert not report.is_lossless
    (note,) = report.partitions[0].notes
    assert note.startswith("the leader epochs before offset 1000 are lost")
    (source / "log-start-offset-checkpoint").unlink()
    assert repair(source, source.with_name("without log start")).partitions[0].notes == []


def test_log_start_offset_when_its_line_is_damaged_then_is_rebuilt_from_the_leader_epochs(
    source: Path,
) -> None:
    write_checkpoint(source / "orders-0" / "leader-epoch-checkpoint", (2, 700), (4, 990), (6, 1050))
    (source / "log-start-offset-checkpoint").write_text("0\n2\norders 0 7\x0000\nother 0 5\n")
    report, target = repaired(source)
    assert entries(target / "log-start-offset-checkpoint") == ["orders 0 700"]
    assert any(
        "log-start-offset-checkpoint: damaged: a log whose entry is lost" in one for one in report.notes
    )
