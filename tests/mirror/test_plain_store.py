"""A log directory in a store as a mirror's target: which partitions get an empty segment, and when."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from pyarrow import fs

from file_systems import CountingHandler, far
from kafkafmt.log.topic_configs import TopicConfig, read_topic_configs
from kafkafmt.memory import MemoryBudget
from kafkafmt.mirror.options import MirrorOptions
from kafkafmt.mirror.protocols import FROM_START, SourceTopic
from kafkafmt.mirror.sealing import Sealing
from kafkafmt.mirror.statistics import Statistics
from kafkafmt.mirror.targets.plain_store import PlainStore
from kafkafmt.mirror.targets.sealed import SealedTarget
from kafkafmt.records.runs import whole_batches
from kafkafmt.storage import RemotePath
from kafkafmt.storage.remote import RemoteStorage
from kafkafmt.types import TopicPartition
from log.samples import batches as large_batches
from mirror.folders import batches, put_log
from store_folders import files_in

MIB = 1024 * 1024
PARTITION = TopicPartition("t", 0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of the partition in the store."""
    return tmp_path / "store" / "t-0"


@pytest.fixture
def target(folder: Path, tmp_path: Path) -> Iterator[Callable[[str], SealedTarget]]:
    """Opens the target of another mirror at each call. Empty segments are due at once."""
    path = RemotePath(RemoteStorage(fs.LocalFileSystem(), "far://"), str(folder.parent))
    with ExitStack() as closing:

        def opened(name: str) -> SealedTarget:
            options = MirrorOptions(
                tmp_path / "source", path, sealing=Sealing(interval=0, spool=tmp_path / name)
            )
            found = SealedTarget(PlainStore(options), Statistics(MemoryBudget(1, "mirror")), options)
            closing.callback(found.close)
            return found

        yield opened


def begin(target: SealedTarget, position: int) -> SealedTarget:
    assert target.resume_offset(PARTITION) in (None, position)
    target.begin(PARTITION, position)
    return target


def store_records(target: SealedTarget, first: int, stop: int, position: int) -> None:
    target.take(PARTITION, whole_batches(b"".join(batches(first, stop))))
    target.finish([PARTITION])
    target.make_durable()
    target.keep_positions({PARTITION: position})
    target.complete_commit(is_last=False)


def logs(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_size for path in folder.glob("*.log")}


def test_empty_segment_when_the_first_segment_is_open_then_is_not_stored(
    target: Callable[[str], SealedTarget], folder: Path
) -> None:
    """It could replace the first segment, which a thread stores meanwhile."""
    one = target("one")
    begin(one, 0)
    one.take(PARTITION, whole_batches(b"".join(batches(0, 100))))
    one.complete_commit(is_last=False)
    assert logs(folder) == {}
    one.finish([PARTITION])
    one.make_durable()
    one.complete_commit(is_last=True)
    assert [*logs(folder).values()] > [0]


@pytest.mark.parametrize("regains", [False, True])
def test_empty_segment_when_the_partition_was_given_up_then_is_not_stored(
    target: Callable[[str], SealedTarget], folder: Path, regains: bool
) -> None:
    one = target("one")
    begin(one, 0)
    one.forget([PARTITION])
    if regains:
        store_records(begin(target("another"), 0), 0, 100, 150)
        begin(one, 150)
    before = files_in(folder.parent)
    one.complete_commit(is_last=False)
    assert files_in(folder.parent) == before


def test_empty_segment_when_another_mirror_stored_records_before_the_partition_begins_again_then_is_not_stored(
    target: Callable[[str], SealedTarget], folder: Path
) -> None:
    """As when a broker did not answer while partitions began."""
    one = target("one")
    assert one.resume_offset(PARTITION) is None
    store_records(begin(target("another"), 50), 50, 100, 150)
    begin(one, 150)
    before = files_in(folder.parent)
    one.complete_commit(is_last=False)
    assert files_in(folder.parent) == before


def test_empty_segment_when_another_mirror_has_stored_records_there_then_its_position_stays(
    target: Callable[[str], SealedTarget], folder: Path
) -> None:
    one = target("one")
    begin(one, 500)
    store_records(begin(target("another"), 500), 500, 600, 650)
    before = files_in(folder.parent)
    one.complete_commit(is_last=False)
    assert files_in(folder.parent) == before


def test_empty_segments_when_many_are_due_then_each_commit_stores_some_and_the_last_one_all(
    target: Callable[[str], SealedTarget], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mirror must poll the cluster between commits."""
    monkeypatch.setattr("kafkafmt.mirror.targets.plain_store._EMPTY_IN_A_COMMIT", 2)
    one = target("one")
    for partition in range(7):
        assert one.resume_offset(TopicPartition("t", partition)) is None
        one.begin(TopicPartition("t", partition), 0)
    stored = []
    for is_last in (False, False, True):
        one.complete_commit(is_last=is_last)
        stored.append(len([*folder.parent.rglob("*.log")]))
    assert stored == [2, 4, 7]


def test_position_when_the_last_segment_has_an_index_then_few_of_its_bytes_are_read(
    folder: Path, tmp_path: Path
) -> None:
    data = large_batches(0, 400, size=5000)
    put_log(folder, data, segment_bytes=MIB * 4)
    handler = CountingHandler()
    options = MirrorOptions(
        tmp_path / "source", far(handler, folder.parent), sealing=Sealing(spool=tmp_path / "spool")
    )
    assert PlainStore(options).resume_offset(PARTITION) == 400
    assert [*logs(folder).values()] == [sum(map(len, data))]
    assert sum(size for _, size in handler.reads) < sum(map(len, data)) // 8


@pytest.mark.parametrize(("beginning", "resumed"), [("earliest", None), ("latest", FROM_START)])
def test_empty_partition_when_the_mirror_was_killed_then_the_next_one_begins_where_it_began(
    target: Callable[[str], SealedTarget], tmp_path: Path, beginning: Any, resumed: int | None
) -> None:
    path = RemotePath(RemoteStorage(fs.LocalFileSystem(), "far://"), str(tmp_path / "store"))
    store = PlainStore(MirrorOptions(tmp_path / "source", path, beginning=beginning))
    assert store.resume_offset(PARTITION) is None
    store.begin(PARTITION, 0)
    assert target("next").resume_offset(PARTITION) == resumed


def prepare(target: SealedTarget, name: str) -> None:
    target.prepare({name: SourceTopic(TopicConfig(3, {"cleanup.policy": "compact"}))})


def test_topics_when_two_mirrors_prepare_theirs_in_turns_then_all_stay(
    target: Callable[[str], SealedTarget], folder: Path
) -> None:
    mirrors = target("one"), target("another")
    for number in range(4):
        prepare(mirrors[number % 2], f"t{number}")
    assert sorted(read_topic_configs(folder.parent)) == ["t0", "t1", "t2", "t3"]


def test_topics_when_another_mirror_wrote_its_own_at_the_same_moment_then_a_commit_adds_those_that_are_missing(
    target: Callable[[str], SealedTarget], folder: Path
) -> None:
    one = target("one")
    prepare(one, "t")
    (folder.parent / "topics.ini").write_text("[other]\npartitions = 2\n")
    one.complete_commit(is_last=True)
    compacted = TopicConfig(3, {"cleanup.policy": "compact"})
    assert read_topic_configs(folder.parent) == {"other": TopicConfig(2), "t": compacted}
