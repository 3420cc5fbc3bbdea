"""A target of sealed segments: its spool when it cannot be written, and when partitions are forgotten."""

from __future__ import annotations

import errno
import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kafkafmt.log.producer_states import ProducerStates
from kafkafmt.memory import MemoryBudget
from kafkafmt.mirror.loop import Mirror
from kafkafmt.mirror.opening import open_mirror
from kafkafmt.mirror.options import MirrorOptions
from kafkafmt.mirror.protocols import SourceTopic
from kafkafmt.mirror.sealing import Sealing
from kafkafmt.mirror.statistics import Statistics
from kafkafmt.mirror.targets.sealed import SealedTarget, SegmentStore
from kafkafmt.mirror.targets.spool import SealedSegment, SpooledSegment
from kafkafmt.records.runs import whole_batches
from kafkafmt.types import TopicPartition
from mirror.folders import batches, put_log

if TYPE_CHECKING:
    from uuid import UUID

PARTITION = TopicPartition("t", 0)


class NotingStore(SegmentStore):
    """Notes where the stored segments end, and the last position that it was told."""

    def __init__(self, spool: Path) -> None:
        self.spool = spool
        self.end = self.position = 0

    def prepare(self, topics: Mapping[str, SourceTopic], *, again: bool) -> Mapping[str, Mapping[str, str]]:
        return {}

    def identify(self, topic_partition: TopicPartition, topic_id: UUID | None) -> None:
        """As if there were no ids."""

    def resume_offset(self, topic_partition: TopicPartition) -> int | None:
        return None

    def producers(self, topic_partition: TopicPartition) -> ProducerStates:
        return ProducerStates()

    def begin(self, topic_partition: TopicPartition, position: int) -> None:
        """The position is 0."""

    def put(self, segment: SealedSegment, earlier: object) -> None:
        """As if it were stored."""
        for path in segment.files.values():
            path.unlink()

    def add(self, segment: SealedSegment, stored: Any) -> None:
        self.end = segment.next_offset

    def keep_positions(self, positions: Mapping[TopicPartition, int]) -> None:
        self.position = positions[PARTITION]

    def complete_commit(self, *, is_last: bool, has_failed: bool = False) -> None:
        """Each position is kept at once."""

    def close(self) -> None:
        """There are no locks."""


def test_segment_when_it_cannot_be_sealed_then_no_position_after_it_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when the disk is full for a moment. The last commit then seals it again."""
    put_log(tmp_path / "source" / "t-0", batches(0, 100))
    seal, failures = SpooledSegment.seal, iter([OSError(errno.ENOSPC, "No space left on device")])

    def failing(self: SpooledSegment) -> SealedSegment:
        for error in failures:
            raise error
        return seal(self)

    monkeypatch.setattr(SpooledSegment, "seal", failing)
    store = NotingStore(tmp_path / "spool")
    options = MirrorOptions(tmp_path / "source", tmp_path / "target", sealing=Sealing(interval=1e-9))
    mirror: Mirror
    with (
        open_mirror(options, lambda _: None, lambda *_: store) as mirror,
        pytest.raises(OSError, match="No space left"),
    ):
        mirror.run()
    assert store.position == store.end == 100


@pytest.mark.parametrize("suffix", [".index", ".timeindex", ".snapshot"])
def test_segment_when_an_index_could_not_be_written_then_is_sealed_with_the_same_files_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    write_bytes, failures = Path.write_bytes, iter([OSError(errno.ENOSPC, "No space left on device")])

    def failing(self: Path, data: bytes) -> int:
        for error in failures if self.suffix == suffix else ():
            raise error
        return write_bytes(self, data)

    run = whole_batches(b"".join(batches(0, 1000)))
    segments = [SpooledSegment(tmp_path / name, PARTITION, None, 0, ProducerStates()) for name in "ab"]
    for segment in segments:
        segment.append_run(run, 0, len(run))
    expected = segments[0].seal()
    monkeypatch.setattr(Path, "write_bytes", failing)
    with pytest.raises(OSError, match="No space left"):
        segments[1].seal()
    found = segments[1].seal()
    contents = [{key: path.read_bytes() for key, path in one.files.items()} for one in (expected, found)]
    assert contents[0] == contents[1]
    assert contents[0][".index"]


class WantingStore(NotingStore):
    """Wants all batches at each commit, and notes where the stored segments end then."""

    committed: int | None = None

    def wants_open_segments(self) -> bool:
        return True

    def complete_commit(self, *, is_last: bool, has_failed: bool = False) -> None:
        self.committed = self.end


def test_commit_when_the_store_wants_all_batches_then_open_segments_are_stored_before(tmp_path: Path) -> None:
    options = MirrorOptions(tmp_path / "source", tmp_path / "target")
    store = WantingStore(tmp_path / "spool")
    with closing(SealedTarget(store, Statistics(MemoryBudget(1, "mirror")), options)) as target:
        target.begin(PARTITION, 0)
        target.take(PARTITION, whole_batches(b"".join(batches(0, 100))))
        deadline = time.monotonic() + 30
        while store.committed is None and time.monotonic() < deadline:
            target.complete_commit(is_last=False)
    assert store.committed == 100


def test_spool_when_partitions_are_forgotten_then_has_none_of_their_bytes(tmp_path: Path) -> None:
    """As after each segment that another mirror has stored: all partitions begin again."""
    options = MirrorOptions(tmp_path / "source", tmp_path / "target")
    store = NotingStore(tmp_path / "spool")
    with closing(SealedTarget(store, Statistics(MemoryBudget(1, "mirror")), options)) as target:
        for _ in range(3):
            target.begin(PARTITION, 0)
            target.take(PARTITION, whole_batches(b"".join(batches(0, 100))))
            (folder,) = tmp_path.glob(".spool.*")
            assert len([*folder.rglob("*.log")]) == 1
            target.forget([PARTITION])
            assert [*folder.iterdir()] == []


class KeepingStore(NotingStore):
    """Keeps the batches of the stored segments by partition."""

    def __init__(self, spool: Path) -> None:
        super().__init__(spool)
        self.stored: dict[TopicPartition, bytes] = {}

    def put(self, segment: SealedSegment, earlier: object) -> None:
        self.stored[segment.topic_partition] = segment.files[".log"].read_bytes()
        super().put(segment, earlier)


@pytest.mark.thread_unsafe
def test_spool_when_many_partitions_have_records_then_few_of_its_files_are_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kafkafmt.mirror.targets.sealed.max_open_logs", lambda: 2)
    options = MirrorOptions(tmp_path / "source", tmp_path / "target")
    store, parts = KeepingStore(tmp_path / "spool"), batches(0, 30)
    partitions = [TopicPartition("t", number) for number in range(10)]
    with closing(SealedTarget(store, Statistics(MemoryBudget(1, "mirror")), options)) as target:
        before, most = open_files(), 0
        for one in partitions:
            target.begin(one, 0)
        for part in parts:
            for one in partitions:
                target.take(one, whole_batches(part))
                most = max(most, open_files() - before)
        target.finish(partitions)
        target.make_durable()
    assert store.stored == dict.fromkeys(partitions, b"".join(parts))
    assert most <= 2


def open_files() -> int:
    return len([*Path("/dev/fd").iterdir()])
