"""Repair of folders that are damaged in every way: each sound batch is kept, and each lost range is reported."""

from __future__ import annotations

from pathlib import Path

import pytest

from kafkafmt.jobs.repair import repair, repair_in_place
from repair.damaged import assert_repaired, damaged_log


def _repair_seeds(tmp_path: Path, seeds: range) -> None:
    for seed in seeds:
        log = damaged_log(tmp_path / "source" / f"t-{seed}", seed)
        before = {path.name: path.read_bytes() for path in log.folder.iterdir()}
        sources = [data for name, data in before.items() if name.endswith(".log")]
        target = tmp_path / "target" / f"t-{seed}"
        report = repair(log.folder, target)
        assert_repaired(log, sources, target, report.partitions[0])
        assert {path.name: path.read_bytes() for path in log.folder.iterdir()} == before
        again = repair(target, tmp_path / "again" / f"t-{seed}")
        assert not again.partitions[0].lost, f"{log.done}: {again.partitions[0].lost}"
        assert not again.partitions[0].mended, f"{log.done}: {again.partitions[0].mended}"
        in_place = repair_in_place(log.folder)
        assert in_place.partitions[0].lost == report.partitions[0].lost
        assert_repaired(log, sources, log.folder, in_place.partitions[0])
        assert not repair_in_place(log.folder).partitions[0].is_changed, f"{seed}: {log.done}"


def test_folder_when_damaged_at_random_then_each_sound_batch_is_kept(tmp_path: Path) -> None:
    _repair_seeds(tmp_path, range(12))


@pytest.mark.full
@pytest.mark.parametrize("first", range(0, 500, 100))
def test_500_folders_when_damaged_at_random_then_each_sound_batch_is_kept(tmp_path: Path, first: int) -> None:
    _repair_seeds(tmp_path, range(first, first + 100))
