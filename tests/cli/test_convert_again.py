"""`kafkafmt convert` run again after retention, compaction or DeleteRecords: the target has what the source has."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from cli.logs import content, json_lines, run, segments
from kafkafmt.jobs.convert import ConvertOptions, convert_segment, plan
from kafkafmt.jobs.rewrite import SegmentTask
from kafkafmt.jobs.rewrite import segment as segment_module
from kafkafmt.log import PartitionLog
from kafkafmt.log.checkpoints import (
    LOG_START_OFFSET_CHECKPOINT,
    log_start_offsets_to_bytes,
    read_log_start_offsets,
)
from kafkafmt.types import TopicPartition
from log.samples import batch, name, offsets, put_segment

ORDERS = TopicPartition("orders", 0)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Segments 0, 10, 20 and 30 with batches of one record."""
    for base in (0, 10, 20, 30):
        put_segment(tmp_path / "logs" / "orders-0", base, map(batch, range(base, base + 10)))
    return tmp_path / "logs"


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "out"


def convert(source: Path, target: Path, *arguments: object) -> Any:
    return run("convert", source, target, "--to-magic", 1, "--jobs", 1, *arguments)


def compact(source: Path, kept: Iterable[int] = range(0, 30, 3), *, stop: int = 30) -> None:
    """Merge the segments from 0 to in front of `stop` into one, as a broker's cleaner does."""
    folder = source / "orders-0"
    for base in range(10, stop, 10):
        (folder / name(base)).unlink()
    put_segment(folder, 0, map(batch, kept))


def names(target: Path) -> list[str]:
    return sorted(path.name for path in (target / "orders-0").iterdir())


def read(directory: Path) -> list[int]:
    return offsets(PartitionLog(directory / "orders-0").records())


def test_segments_when_compaction_merged_their_sources_then_go_in_the_commit_of_the_merged_one(
    source: Path, target: Path
) -> None:
    assert convert(source, target).exit_code == 0
    compact(source)
    result = convert(source, target)
    assert result.exit_code == 0
    removed = [f"removed: {target / 'orders-0' / name(base)}: its source is gone" for base in (10, 20)]
    assert result.stderr.splitlines() == removed
    assert names(target) == sorted(
        name(base, suffix) for base in (0, 30) for suffix in (".converted", ".index", ".log", ".timeindex")
    )
    assert read(target) == [*range(0, 30, 3), *range(30, 40)]
    (*_, summary) = json_lines(convert(source, target, "--json").stdout)
    assert (summary["summary"]["unchanged"], summary["summary"]["removed"]) == (2, 0)


def test_segments_when_the_merged_one_is_the_last_of_the_log_then_go_as_well(
    source: Path, target: Path
) -> None:
    convert(source, target)
    compact(source, range(40), stop=40)
    assert convert(source, target).exit_code == 0
    assert [path.name for path in segments(target)] == [name(0)]
    assert read(target) == list(range(40))


def test_stale_segments_when_an_earlier_run_left_them_then_go_though_nothing_is_converted(
    source: Path, target: Path, tmp_path: Path
) -> None:
    convert(source, target)
    stale = shutil.copytree(target, tmp_path / "stale")
    compact(source)
    convert(source, target)
    for suffix in (".log", ".converted"):
        shutil.copy2(stale / "orders-0" / name(10, suffix), target / "orders-0" / name(10, suffix))
    reports = json_lines(convert(source, target, "--json").stdout)[:-1]
    assert [report["status"] for report in reports] == ["unchanged", "unchanged"]
    assert [path.name for path in segments(target)] == [name(0), name(30)]


def test_commit_when_killed_at_any_step_then_no_offset_is_read_twice_and_the_next_run_ends_it(
    source: Path, target: Path, tmp_path: Path
) -> None:
    convert(source, target)
    before = shutil.copytree(target, tmp_path / "before")
    old = read(target)
    compact(source)
    task = next(task for task in plan(source, target) if task.segment.base_offset == 0)
    new = [*range(0, 30, 3), *range(30, 40)]
    outcomes = set()
    for step in itertools.count(1):
        shutil.rmtree(target)
        shutil.copytree(before, target)
        is_done = converts_up_to(step, task)
        found = read(target)
        assert found == sorted(set(found))
        assert {*new} <= {*found} <= {*old}  # what compaction took behind its last batch may be there still
        outcomes.add(tuple(found))
        assert convert(source, target).exit_code == 0
        assert (read(target), [path.name for path in segments(target)]) == (new, [name(0), name(30)])
        if is_done:
            break
    assert step > 10
    assert outcomes >= {tuple(old), tuple(new)}


def converts_up_to(kill_at: int, task: SegmentTask) -> bool:
    """Convert in a process that is killed before a rename, unlink or fsync, counted from 1; did it end before that?"""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    try:
        steps = itertools.count(1)

        def stepped(function: Any) -> Any:
            def step(*arguments: Any, **options: Any) -> Any:
                if next(steps) == kill_at:
                    os._exit(9)
                return function(*arguments, **options)

            return step

        Path.rename, Path.unlink = stepped(Path.rename), stepped(Path.unlink)  # type: ignore[method-assign]
        os.fsync = stepped(os.fsync)
        convert_segment(task, ConvertOptions(1))
        os._exit(0)
    finally:
        os._exit(1)


def test_segments_when_retention_deleted_their_sources_then_go(source: Path, target: Path) -> None:
    convert(source, target)
    for base in (0, 10):
        (source / "orders-0" / name(base)).unlink()
    assert convert(source, target).exit_code == 0
    assert [path.name for path in segments(target)] == [name(20), name(30)]


@pytest.mark.parametrize("left", ["nothing", "an empty folder", "no partition", "a folder that is compacted"])
def test_target_when_the_source_cannot_vouch_for_itself_then_keeps_all(
    source: Path, target: Path, left: str
) -> None:
    convert(source, target)
    before = content(target)
    folder = source / "orders-0"
    if left == "nothing":
        shutil.rmtree(source)
    elif left == "no partition":
        shutil.rmtree(folder)
    elif left == "an empty folder":
        for path in folder.iterdir():
            path.unlink()
    else:  # a broker has renamed the old segments, and the merged one not yet
        (folder / name(0)).rename(folder / f"{name(0)}.deleted")
        (folder / f"{name(0)}.swap").write_bytes(b"")
    convert(source, target)
    assert content(target) == before


def test_segments_when_the_log_ends_before_them_then_are_kept_and_told(source: Path, target: Path) -> None:
    convert(source, target)
    for base in (10, 20, 30):  # the topic was made again, or was cut off
        (source / "orders-0" / name(base)).unlink()
    before = read(target)
    result = convert(source, target)
    assert result.exit_code == 1
    assert f"kept: {target / 'orders-0' / name(30)}: its source is gone, and the log" in result.stderr
    assert read(target) == before


def test_segments_of_others_when_in_the_target_then_stay(source: Path, target: Path) -> None:
    convert(source, target)
    other = target / "orders-0" / name(15)
    other.write_bytes(batch(15))
    other.with_suffix(".converted").write_text(
        '{"source": "/elsewhere/orders-0/x", "targets": {}, "outdated": {}}'
    )
    compact(source)
    convert(source, target)
    assert other.exists()


def test_part_of_an_outgrown_segment_when_named_as_a_stale_one_then_stays(
    source: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    convert(source, target)
    compact(source, range(30))
    monkeypatch.setattr(segment_module, "MAX_SEGMENT_BYTES", 1500)
    assert convert(source, target, "--chunk-size", 100).exit_code == 0
    assert len(segments(target)) > 2
    assert read(target) == list(range(40))


def delete_records(source: Path, offset: int) -> None:
    (source / LOG_START_OFFSET_CHECKPOINT).write_bytes(log_start_offsets_to_bytes({ORDERS: offset}))


def test_deleted_records_when_converted_then_are_deleted_in_the_target_as_well(
    source: Path, target: Path
) -> None:
    delete_records(source, 13)
    assert convert(source, target).exit_code == 0
    assert read(target) == list(range(13, 40))
    assert read_log_start_offsets(target) == {ORDERS: 13}
    assert [path.name for path in segments(target)] == [name(10), name(20), name(30)]


def test_deleted_records_when_deleted_after_a_run_then_the_next_run_deletes_them(
    source: Path, target: Path
) -> None:
    convert(source, target)
    assert not (target / LOG_START_OFFSET_CHECKPOINT).exists()
    delete_records(source, 13)
    reports = json_lines(convert(source, target, "--json").stdout)[:-1]
    assert {report["status"] for report in reports} == {"unchanged"}
    assert read(target) == list(range(13, 40))


def test_deleted_records_when_the_target_has_a_higher_start_then_do_not_come_back(
    source: Path, target: Path
) -> None:
    target.mkdir()
    delete_records(target, 25)
    delete_records(source, 13)
    convert(source, target)
    assert read_log_start_offsets(target) == {ORDERS: 25}


def test_deleted_records_when_asked_for_then_are_converted_and_shown(source: Path, target: Path) -> None:
    delete_records(source, 13)
    convert(source, target)
    assert convert(source, target, "--from-segment-start").exit_code == 0
    assert read(target) == list(range(40))
    assert read_log_start_offsets(target) == {}


def test_checkpoint_when_malformed_then_nothing_is_converted(source: Path, target: Path) -> None:
    (source / LOG_START_OFFSET_CHECKPOINT).write_text("0\nx\n")
    result = convert(source, target)
    path = source / LOG_START_OFFSET_CHECKPOINT
    assert (result.exit_code, result.stderr) == (
        1,
        f"kafkafmt: {path}: line 2: expected the number of entries, found 'x'\n",
    )
    assert not target.exists()
