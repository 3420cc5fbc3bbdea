"""A folder as target: the positions that it keeps beside its logs, and when its logs are durable."""

from __future__ import annotations

import errno
import shutil
import uuid
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from kafkafmt.log import LogAppender
from kafkafmt.log.appender import create_log
from kafkafmt.log.growing_segment import GrowingSegment
from kafkafmt.log.partition_metadata import write_topic_id
from kafkafmt.memory import MemoryBudget
from kafkafmt.mirror.errors import MirrorError
from kafkafmt.mirror.options import MirrorOptions
from kafkafmt.mirror.protocols import FROM_START
from kafkafmt.mirror.statistics import Statistics
from kafkafmt.mirror.targets.directory import DirectoryTarget
from kafkafmt.mirror.targets.positions import read_position
from kafkafmt.records.runs import whole_batches
from kafkafmt.types import TopicPartition
from mirror.folders import batches, put_log

FIRST, SECOND = TopicPartition("t", 0), TopicPartition("t", 1)


def target_in(folder: Path, **options: Any) -> DirectoryTarget:
    asked = MirrorOptions(folder / "source", folder / "target", **options)
    return DirectoryTarget(folder / "target", Statistics(MemoryBudget(1, "mirror")), asked)


def test_positions_when_logs_were_closed_then_are_kept_without_opening_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of more logs than may be open. Another writer may have one of them open meanwhile."""
    monkeypatch.setattr("kafkafmt.mirror.targets.directory.max_open_logs", lambda: 1)
    with closing(target_in(tmp_path)) as target:
        target.begin(FIRST, 10)
        target.begin(SECOND, 20)
        with LogAppender(tmp_path / "target" / "t-0"):
            target.keep_positions({FIRST: 15, SECOND: 25})
    assert read_position(tmp_path / "target" / "t-0", 10) == 15
    assert read_position(tmp_path / "target" / "t-1", 20) == 25


def open_another_and_commit(target: DirectoryTarget) -> None:
    target.begin(SECOND, 0)
    target.make_durable()


@pytest.mark.parametrize("most_open", [1, 2])
def test_batches_when_they_could_not_be_flushed_then_are_never_said_to_be_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most_open: int
) -> None:
    """The first flush is that of a log that is closed for another one, or that of a commit."""
    flush, failures = GrowingSegment.flush, iter([OSError(errno.EIO, "Input/output error")])

    def failing(self: GrowingSegment) -> None:
        for error in failures:
            raise error
        flush(self)

    monkeypatch.setattr("kafkafmt.mirror.targets.directory.max_open_logs", lambda: most_open)
    with closing(target_in(tmp_path)) as target:
        target.begin(FIRST, 0)
        target.take(FIRST, whole_batches(b"".join(batches(0, 10))))
        with monkeypatch.context() as patched:
            patched.setattr(GrowingSegment, "flush", failing)
            with pytest.raises(OSError, match="Input/output error"):
                open_another_and_commit(target)
            with pytest.raises(OSError, match="Input/output error"):
                target.make_durable()


@pytest.mark.parametrize("is_replaced", [False, True])
def test_batches_when_the_folder_was_deleted_while_they_were_written_then_are_not_said_to_be_durable(
    tmp_path: Path, *, is_replaced: bool
) -> None:
    folder = tmp_path / "target" / "t-0"
    with closing(target_in(tmp_path)) as target:
        target.begin(FIRST, 0)
        target.take(FIRST, whole_batches(b"".join(batches(0, 10))))
        shutil.rmtree(folder)
        if is_replaced:
            create_log(folder)
        with pytest.raises(MirrorError, match=f"^{folder}: the folder was deleted or replaced"):
            target.make_durable()


def test_recreated_topic_when_the_mirror_is_killed_before_it_begins_then_the_next_one_begins_it_at_its_start(
    tmp_path: Path,
) -> None:
    put_log(tmp_path / "target" / "t-0", batches(0, 100))
    write_topic_id(tmp_path / "target" / "t-0", uuid.UUID(int=1))
    for _ in range(2):
        with closing(target_in(tmp_path, restarts_recreated=True)) as target:
            target.identify(FIRST, uuid.UUID(int=2))
    with closing(target_in(tmp_path)) as target:
        target.identify(FIRST, uuid.UUID(int=2))
        assert target.resume_offset(FIRST) == FROM_START


@pytest.mark.parametrize("topic_id", [uuid.UUID(int=1), None])
@pytest.mark.parametrize("commits", [False, True])
def test_partition_when_it_has_begun_at_offset_0_then_the_next_run_does_not_begin_it_anew(
    tmp_path: Path, topic_id: uuid.UUID | None, *, commits: bool
) -> None:
    """With `--from latest` it would leave out what came since. Brokers before 2.8 have no topic ids."""
    for expected in (None, FROM_START, FROM_START):
        with closing(target_in(tmp_path, beginning="latest")) as target:
            target.identify(FIRST, topic_id)
            assert target.resume_offset(FIRST) == expected
            target.begin(FIRST, 0)
            if commits:
                target.make_durable()
                target.keep_positions({FIRST: 0})
    with closing(target_in(tmp_path, beginning="latest")) as target:
        target.begin(FIRST, 0)
        target.take(FIRST, whole_batches(b"".join(batches(0, 10))))
        target.keep_positions({FIRST: 10})
    assert not (tmp_path / "target" / "t-0" / "kafkafmt-mirror-position").exists()
