"""Mirrors with `read_committed` that continue a folder to which other mirrors wrote transactions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kafkafmt.log import LogDirectory
from kafkafmt.mirror.protocols import PartitionError, Target
from kafkafmt.mirror.targets.directory import DirectoryTarget
from kafkafmt.mirror.targets.sealed import SealedTarget
from kafkafmt.records.runs import slice_run
from kafkafmt.storage import storage_path, write_file
from kafkafmt.types import Isolation, TopicPartition
from log.samples import marker, transactional
from mirror.folders import batch, mirror, put_log
from store_folders import uri_of

if TYPE_CHECKING:
    from _kafkafmt.batches.scan import BatchRun

COMMITTED = ("--isolation", "read_committed")
# One transaction after the other, all of them committed.
TRANSACTIONS = [
    transactional(0, 7, 2),
    marker(2, 7, commit=True),
    transactional(3, 7, 2),
    marker(5, 7, commit=True),
]
LATER = [
    transactional(6, 7, 2),
    marker(8, 7, commit=False),
    transactional(9, 7, 2),
    marker(11, 7, commit=True),
]


@pytest.fixture(params=["folder", "store"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A folder, and a URI."""
    if request.param == "folder":
        return str(tmp_path / "target")
    request.getfixturevalue("s3")
    return uri_of(request.getfixturevalue("s3_options"), tmp_path.name)


def offsets_in(target: object, isolation: Isolation = "read_uncommitted") -> list[int]:
    log = LogDirectory(storage_path(str(target))).partition("t", 0)
    return [record.offset for record in log.records(isolation=isolation)]


@pytest.mark.parametrize("count", [1, 2])
def test_markers_when_release_0_1_0_left_them_out_then_the_folder_is_not_continued(
    tmp_path: Path, target: str, count: int
) -> None:
    """That release kept the transactions of the batches, and the position after the last marker in a file."""
    source = tmp_path / "source"
    put_log(tmp_path / "markerless" / "t-0", TRANSACTIONS[: 2 * count : 2])
    assert mirror(tmp_path / "markerless", target).status == 0
    position = b"%d %d\n" % (3 * count - 1, 3 * count)
    write_file(storage_path(target) / "t-0" / "kafkafmt-mirror-position", position)
    put_log(source / "t-0", [*TRANSACTIONS, *LATER])
    outcome = mirror(source, target, *COMMITTED)
    assert outcome.status == 1
    assert "expected all offsets from 0 on, where a transaction is open, found 2 missing" in outcome.errors
    assert "mirror into another folder" in outcome.errors
    assert offsets_in(target) == [0, 1, 3, 4][: 2 * count]
    assert mirror(source, tmp_path / "again", *COMMITTED).status == 0
    assert offsets_in(tmp_path / "again", "read_committed") == [0, 1, 3, 4, 9, 10]


def source_after_a_mirror(tmp_path: Path, target: str) -> Path:
    """Return a log of which a mirror with `read_uncommitted` has two open transactions, which are aborted since."""
    source = tmp_path / "source"
    put_log(source / "t-0", [*TRANSACTIONS, transactional(6, 8, 2)])
    assert mirror(source, target).status == 0
    put_log(source / "t-0", [transactional(8, 7, 2), batch(10, 1), marker(11, 7, commit=False), batch(12, 1)])
    put_log(source / "t-0", [marker(13, 8, commit=False), batch(14, 1)])
    return source


def test_markers_when_read_uncommitted_left_transactions_open_then_are_appended_by_later_runs(
    tmp_path: Path, target: str
) -> None:
    """Batches that the later runs leave out are no missing markers."""
    source = source_after_a_mirror(tmp_path, target)
    assert mirror(source, target, *COMMITTED).status == 0
    put_log(source / "t-0", [transactional(15, 8, 2), marker(17, 8, commit=False), batch(18, 1)])
    assert mirror(source, target, *COMMITTED).status == 0
    assert offsets_in(target, "read_committed") == [0, 1, 3, 4, 10, 12, 14, 18]


@pytest.mark.parametrize("stop", [10, 11, 13])
def test_markers_when_a_run_ends_before_them_then_the_next_one_appends_them(
    tmp_path: Path, target: str, monkeypatch: pytest.MonkeyPatch, stop: int
) -> None:
    """The offsets that the run left out are not those of markers. stop: where it ends, as after a kill."""
    source = source_after_a_mirror(tmp_path, target)
    with monkeypatch.context() as patched:
        for kind in (DirectoryTarget, SealedTarget):
            patched.setattr(kind, "take", taking_before(kind.take, stop))
        assert mirror(source, target, *COMMITTED).status == 1
    assert mirror(source, target, *COMMITTED).status == 0
    assert offsets_in(target, "read_committed") == [0, 1, 3, 4, 10, 12, 14]


def taking_before(take: Callable[..., None], stop: int) -> Callable[..., None]:
    """Return a `Target.take` that stops the partition at the first batch which is not before an offset."""

    def taken(target: Target, topic_partition: TopicPartition, run: BatchRun) -> None:
        count = int((run.index["last_offset"] < stop).sum())
        if count:
            take(target, topic_partition, slice_run(run, 0, count))
        if count < len(run):
            raise PartitionError("stopped", stop)

    return taken
