"""Logs that are read in steps: how much is read in each, and that what they find is what is found at once."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kafkafmt._util.steps import Steps, finish
from kafkafmt.log.open_segment import READ_BYTES
from kafkafmt.log.tail import LogTail
from log.samples import batch, batches, put_segment

RECORDS, VALUE_BYTES = 2000, 4000
BEHIND = 10_000
LARGE_BATCH_BYTES = 4 * 1024 * 1024

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="counts what is read by /proc")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two segments of 8 MB without indexes."""
    folder = tmp_path_factory.mktemp("logs") / "t-0"
    put_segment(folder, 0, batches(0, RECORDS, size=VALUE_BYTES))
    put_segment(folder, BEHIND, batches(BEHIND, BEHIND + RECORDS, size=VALUE_BYTES))
    return folder


def read_bytes() -> int:
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("rchar")).split()[1])


def taken(steps: Steps[Any], called: list[int] | None = None) -> tuple[Any, list[int]]:
    """The result, and what is read in each step; `called` gets what functions that are handed out read."""
    sizes, result, before = [], None, read_bytes()
    while True:
        try:
            step = steps.send(result)
        except StopIteration as end:
            return end.value, [*sizes, read_bytes() - before]
        now = read_bytes()
        sizes.append(now - before)
        result = None if step is None else step()
        before = read_bytes()
        if step is not None and called is not None:
            called.append(before - now)


def test_log_when_it_is_read_in_steps_then_each_reads_a_bounded_part(folder: Path) -> None:
    log = LogTail(folder, is_read=False)
    _, sizes = taken(log.refresh_steps())
    assert sum(sizes) > RECORDS * VALUE_BYTES
    assert max(sizes) < 2 * READ_BYTES
    assert log.end_offset == LogTail(folder).end_offset == BEHIND + RECORDS


def test_stretch_when_its_crcs_are_checked_in_steps_then_each_reads_a_bounded_part(folder: Path) -> None:
    found = LogTail(folder).find(0)
    assert found is not None
    end, sizes = taken(found.segment.sound_end_steps(0, found.end_position))
    assert end == found.end_position
    assert sum(sizes) > RECORDS * VALUE_BYTES
    assert max(sizes) < 2 * READ_BYTES


def test_offset_when_it_is_far_from_what_is_known_then_the_search_is_handed_out(folder: Path) -> None:
    called: list[int] = []
    found, sizes = taken(LogTail(folder).find_steps(RECORDS - 1), called)
    assert found == LogTail(folder).find(RECORDS - 1)._replace(segment=found.segment)
    assert sum(called) > RECORDS * VALUE_BYTES // 2
    assert max(sizes) < 5 * 1024 * 1024


@pytest.fixture
def large(tmp_path: Path) -> Path:
    put_segment(tmp_path, 0, [batch(0), batch(1, size=LARGE_BATCH_BYTES), batch(2)])
    return tmp_path


def end_of_log(folder: Path) -> Steps[Any]:
    return LogTail(folder, is_read=False).refresh_steps()


def large_batch(folder: Path) -> Steps[Any]:
    return LogTail(folder).find_steps(1)


def end_of_sound_batches(folder: Path) -> Steps[Any]:
    found = LogTail(folder).find(0)
    assert found is not None
    return found.segment.sound_end_steps(0, found.end_position)


@pytest.mark.parametrize("work", [end_of_log, large_batch, end_of_sound_batches])
def test_batch_when_it_is_large_then_it_is_read_by_what_is_handed_out(
    large: Path, work: Callable[[Path], Steps[Any]]
) -> None:
    called: list[int] = []
    made, sizes = taken(work(large), called)
    assert made
    assert max(called) > LARGE_BATCH_BYTES
    assert sum(sizes) < LARGE_BATCH_BYTES // 4


def test_error_when_it_is_raised_by_what_is_handed_out_then_the_steps_meet_it() -> None:
    def fail() -> None:
        raise ValueError("told")

    def steps() -> Steps[str]:
        try:
            yield fail
        except ValueError as error:
            return str(error)
        return "nothing"

    assert finish(steps()) == "told"
