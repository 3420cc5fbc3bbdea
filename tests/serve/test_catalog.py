"""The topics of a log directory: what a listing finds, and what it costs where little has changed."""

from __future__ import annotations

import asyncio
import base64
import errno
import os
import shutil
import time
import uuid
from pathlib import Path
from typing import Any

import pytest

from calls import calls_of, traced_calls
from file_systems import SlowHandler, far
from kafkafmt.log.appender import create_log
from kafkafmt.log.directory import FollowedFolders
from kafkafmt.serve.catalog import Catalog
from kafkafmt.types import TopicPartition
from log.samples import batch, batches, malformed_marker, put_segment, transactional
from logged_events import logged_events


def topics(catalog: Catalog) -> dict[str, list[int]]:
    return {topic.name: list(topic.partitions) for topic in catalog.topics()}


def write_id(folder: Path, topic_id: uuid.UUID) -> None:
    text = base64.urlsafe_b64encode(topic_id.bytes).decode().rstrip("=")
    (folder / "partition.metadata").write_text(f"version: 0\ntopic_id: {text}\n")


def test_folders_when_they_come_and_go_then_topics_are_those_that_are_there(tmp_path: Path) -> None:
    for name in ("b-1", "a-0"):
        create_log(tmp_path / name)
    catalog = Catalog(tmp_path)
    assert topics(catalog) == {"a": [0], "b": [1]}
    create_log(tmp_path / "b-0")
    (tmp_path / "c-0").mkdir()  # no segment yet
    assert topics(catalog) == {"a": [0], "b": [0, 1]}
    create_log(tmp_path / "c-0")
    shutil.rmtree(tmp_path / "a-0")
    (tmp_path / "b-1").rename(tmp_path / "b-1.0123-delete")
    assert topics(catalog) == {"b": [0], "c": [0]}


def test_topic_when_deleted_and_made_again_then_has_its_new_id(tmp_path: Path) -> None:
    ids = [uuid.UUID(int=5), uuid.UUID(int=6)]
    catalog = Catalog(tmp_path)
    for topic_id in ids:
        create_log(tmp_path / "t-0")
        write_id(tmp_path / "t-0", topic_id)
        assert catalog.topics()[0].id == topic_id
        (tmp_path / "t-0").rename(tmp_path / f"t-0.{topic_id.hex}-delete")
    create_log(tmp_path / "t-0")
    write_id(tmp_path / "t-0", ids[0])
    catalog.topics()
    found = catalog.topic_by_id(ids[0])
    assert found is not None
    assert found.name == "t"
    assert catalog.topic_by_id(ids[1]) is None


def test_topic_when_its_id_is_written_after_its_folder_then_has_it(tmp_path: Path) -> None:
    catalog = Catalog(tmp_path)
    create_log(tmp_path / "t-0")
    assert topics(catalog) == {"t": [0]}
    write_id(tmp_path / "t-0", uuid.UUID(int=7))
    assert catalog.topics()[0].id == uuid.UUID(int=7)
    found = catalog.topic_by_id(uuid.UUID(int=7))
    assert found is not None
    assert found.name == "t"


def test_listing_when_it_fails_once_then_known_topics_are_kept_and_the_next_call_finds_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_log(tmp_path / "a-0")
    catalog = Catalog(tmp_path)
    create_log(tmp_path / "b-0")
    os.utime(tmp_path, (1, 1))  # the directory does not change any more

    calls = []

    def too_many_open_files(folders: FollowedFolders, **_: object) -> None:
        calls.append(folders)
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), str(tmp_path))

    with monkeypatch.context() as patched, logged_events("kafkafmt.serve.catalog") as logged:
        patched.setattr(FollowedFolders, "refresh", too_many_open_files)
        patched.setattr("kafkafmt.serve.catalog._SEARCH_PAUSE", 10**9)
        assert topics(catalog) == topics(catalog) == {"a": [0]}
        assert len(calls) == 1, "the next one is due after a pause"
        catalog._retry_due_ns = 0
    (error,) = logged
    assert (error["log_level"], error["event"].partition(":")[0]) == (
        "error",
        "the log directory cannot be listed",
    )
    assert topics(catalog) == {"a": [0], "b": [0]}


def test_remote_listing_when_it_fails_then_known_topics_are_kept_and_the_store_is_asked_seldom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_log(tmp_path / "a-0")
    catalog = Catalog(far(SlowHandler(), tmp_path))
    listings: list[int] = []
    now_ns = time.time_ns()

    def unreachable(folders: FollowedFolders, **_: object) -> None:
        listings.append(now_ns)
        raise OSError(errno.EHOSTUNREACH, os.strerror(errno.EHOSTUNREACH))

    monkeypatch.setattr(FollowedFolders, "refresh", unreachable)
    monkeypatch.setattr("kafkafmt.serve.catalog.time.time_ns", lambda: now_ns)
    for _ in range(60):
        now_ns += 10**9
        asyncio.run(catalog.update())
        assert topics(catalog) == {"a": [0]}
    assert 5 <= len(listings) <= 7


@pytest.mark.parametrize("name", ["t-0", "other-0"])
def test_folder_when_its_first_segment_comes_later_then_is_served(tmp_path: Path, name: str) -> None:
    create_log(tmp_path / "t-1")
    (tmp_path / name).mkdir()
    os.utime(tmp_path, (1, 1))  # a segment in the folder does not change the directory
    catalog = Catalog(tmp_path)
    assert topics(catalog) == {"t": [1]}
    create_log(tmp_path / name)
    deadline = time.monotonic() + 60
    while topics(catalog) == {"t": [1]}:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    topic, _, number = name.partition("-")
    assert int(number) in topics(catalog)[topic]


def test_folders_without_segments_when_they_stay_so_then_are_looked_into_seldom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "t-0").mkdir()
    os.utime(tmp_path, (1, 1))
    catalog = Catalog(tmp_path)
    now_ns = 0
    listed: list[int] = []
    refresh = FollowedFolders.refresh

    def slowly(folders: FollowedFolders, **options: Any) -> set[TopicPartition]:
        nonlocal now_ns
        listed.append(now_ns)
        now_ns += 1000
        return refresh(folders, **options)

    catalog._empty_due_ns = 0
    monkeypatch.setattr(FollowedFolders, "refresh", slowly)
    monkeypatch.setattr("kafkafmt.serve.catalog.time.monotonic_ns", lambda: now_ns)
    for _ in range(300):
        catalog.topics()
        now_ns += 1000
    assert listed == [0, 101_000, 202_000]


def wait_until_known(catalog: Catalog, topic_id: uuid.UUID) -> None:
    """Ask for topics as clients do. Raises AssertionError if none has the ID after a minute."""
    deadline = time.monotonic() + 60
    while topic_id not in [topic.id for topic in catalog.topics()]:
        assert time.monotonic() < deadline
        time.sleep(0.001)


@pytest.mark.parametrize("folder", ["t-0", "t-1"])
def test_topic_when_its_id_is_written_long_after_its_folder_then_has_it(tmp_path: Path, folder: str) -> None:
    for name in ("t-0", "t-1"):
        create_log(tmp_path / name)
    os.utime(tmp_path, (1, 1))  # the directory itself does not change any more
    catalog = Catalog(tmp_path)
    (before,) = catalog.topics()
    write_id(tmp_path / folder, uuid.UUID(int=7))
    wait_until_known(catalog, uuid.UUID(int=7))
    found = catalog.topic_by_id(uuid.UUID(int=7))
    assert found is not None
    assert found.partitions == before.partitions  # which keep their open logs
    assert catalog.topic_by_id(before.id) is None


def test_topics_without_ids_when_there_are_many_then_each_is_searched_after_a_while(tmp_path: Path) -> None:
    names = [f"t{number}-0" for number in range(250)]
    for name in names:
        create_log(tmp_path / name)
    os.utime(tmp_path, (1, 1))
    catalog = Catalog(tmp_path)
    for name in names:
        write_id(tmp_path / name, uuid.uuid5(uuid.NAMESPACE_URL, name))
    for name in names:
        wait_until_known(catalog, uuid.uuid5(uuid.NAMESPACE_URL, name))


def test_topics_without_ids_when_they_stay_so_then_are_searched_seldom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_log(tmp_path / "t-0")
    os.utime(tmp_path, (1, 1))
    catalog = Catalog(tmp_path)
    now_ns = 0
    read: list[int] = []

    def slowly(folder: Path) -> None:
        nonlocal now_ns
        read.append(now_ns)
        now_ns += 1000

    monkeypatch.setattr("kafkafmt.serve.catalog.read_topic_id", slowly)
    monkeypatch.setattr("kafkafmt.serve.catalog.time.monotonic_ns", lambda: now_ns)
    for _ in range(300):
        catalog.topics()
        now_ns += 1000
    assert read == [0, 101_000, 202_000]


def test_topic_when_its_id_cannot_be_read_for_a_moment_then_keeps_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_log(tmp_path / "t-0")
    write_id(tmp_path / "t-0", uuid.UUID(int=7))
    catalog = Catalog(tmp_path)
    create_log(tmp_path / "t-1")
    with monkeypatch.context() as patched:
        patched.setattr("kafkafmt.serve.catalog.read_topic_id", lambda folder: None)
        assert topics(catalog) == {"t": [0, 1]}
        assert catalog.topics()[0].id == uuid.UUID(int=7)


def test_topic_when_hidden_then_is_found_in_no_way(tmp_path: Path) -> None:
    create_log(tmp_path / "t-0")
    catalog = Catalog(tmp_path)
    (topic,) = catalog.topics()
    catalog.hide(["t"])
    assert (catalog.topics(), catalog.topic("t"), catalog.topic_by_id(topic.id)) == ([], None, None)
    assert catalog.partition("t", 0) is None
    catalog.show(["t"])
    assert topics(catalog) == {"t": [0]}


def test_folders_when_files_in_them_are_gone_then_are_looked_into_again(tmp_path: Path) -> None:
    create_log(tmp_path / "t-0")
    catalog = Catalog(tmp_path)
    next((tmp_path / "t-0").glob("*.log")).unlink()
    catalog.invalidate()
    assert topics(catalog) == {}


@pytest.mark.parametrize("name", ["new-0", "t0-1"])
def test_folder_when_it_comes_to_many_then_those_are_not_looked_into(tmp_path: Path, name: str) -> None:
    def calls_for_one_more(count: int) -> int:
        directory = tmp_path / str(count)
        directory.mkdir()
        for number in range(count):
            create_log(directory / f"t{number}-0")
            write_id(directory / f"t{number}-0", uuid.uuid4())
        catalog = Catalog(directory)
        create_log(directory / name)
        return calls_of(catalog._refresh)

    few, many = calls_for_one_more(10), calls_for_one_more(110)
    assert many - few <= 100 * 6


def follow_all(catalog: Catalog) -> None:
    async def follow() -> None:
        for topic in catalog.topics():
            for partition in topic.partitions.values():
                await partition.follow()

    asyncio.run(follow())


def test_ends_of_segments_when_their_log_is_deleted_then_are_forgotten(tmp_path: Path) -> None:
    for name in ("a-0", "b-0"):
        for base_offset in (0, 5):
            put_segment(tmp_path / name, base_offset, batches(base_offset, base_offset + 5, 5))
    catalog = Catalog(tmp_path)
    follow_all(catalog)
    known = catalog._cache.segment_ends._known
    assert known.keys() == {tmp_path / "a-0", tmp_path / "b-0"}
    shutil.rmtree(tmp_path / "a-0")
    assert topics(catalog) == {"b": [0]}
    catalog.release_deleted_segments()
    assert known.keys() == {tmp_path / "b-0"}


def test_ends_of_segments_when_their_log_is_remote_then_are_kept(tmp_path: Path) -> None:
    for base_offset in (0, 5):
        put_segment(tmp_path / "a-0", base_offset, batches(base_offset, base_offset + 5, 5))
    catalog = Catalog(far(SlowHandler(), tmp_path))
    follow_all(catalog)
    catalog.release_deleted_segments()
    assert [folder.name for folder in catalog._cache.segment_ends._known] == ["a-0"]


def test_log_when_its_segments_overlap_then_is_followed_and_told_of_once(tmp_path: Path) -> None:
    for base_offset, end in ((0, 30), (10, 20), (30, 40)):
        put_segment(tmp_path / "orders-0", base_offset, batches(base_offset, end, 5))
    partition = Catalog(tmp_path).topics()[0].partitions[0]

    async def follow() -> list[int]:
        return [(await partition.follow()).end_offset for _ in range(2)]

    with logged_events("kafkafmt.serve.partition") as logged:
        assert asyncio.run(follow()) == [40, 40]
    (warning,) = logged
    assert (warning["log_level"], warning["partition"], warning["segments"]) == ("warning", "orders-0", 1)
    assert "each offset is served once" in warning["event"]


def test_log_when_a_transaction_marker_is_malformed_then_its_batches_are_served_and_it_is_told_of_once(
    tmp_path: Path,
) -> None:
    path = put_segment(tmp_path / "orders-0", 0, [batch(0), transactional(1, 7)])
    partition = Catalog(tmp_path).topics()[0].partitions[0]

    async def follow() -> tuple[int, int]:
        log = await partition.follow()
        await partition.follow_transactions()
        return log.end_offset, log.stable_offset

    with logged_events("kafkafmt.serve.partition") as logged:
        assert asyncio.run(follow()) == (2, 1)
        with path.open("ab") as file:
            file.write(malformed_marker(2, 7) + batch(3))
        assert [asyncio.run(follow()) for _ in range(2)] == [(4, 1)] * 2
    (warning,) = logged
    assert (warning["log_level"], warning["partition"], warning["offset"]) == ("warning", "orders-0", 2)
    assert str(path) in warning["error"]


def test_leader_epochs_when_the_checkpoint_cannot_be_read_once_then_are_read_at_the_next_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_segment(tmp_path / "t-0", 0, batches(0, 5))
    checkpoint = tmp_path / "t-0" / "leader-epoch-checkpoint"
    checkpoint.write_text("0\n1\n5 0\n")
    partition = Catalog(tmp_path).partition("t", 0)
    assert partition is not None

    def too_many_open_files(path: Path) -> bytes:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), str(path))

    with monkeypatch.context() as patched, logged_events("kafkafmt.serve.partition") as logged:
        patched.setattr("kafkafmt.serve.partition.read_file", too_many_open_files)
        assert partition.leader_epochs() == partition.leader_epochs() == []
    (warning,) = logged
    assert (warning["log_level"], warning["file"]) == ("warning", str(checkpoint))
    assert partition.leader_epoch == 5


def test_log_of_many_segments_when_its_listing_changes_then_the_loop_asks_for_none_of_them(
    tmp_path: Path,
) -> None:
    """Neither when it is listed first: what is done for each segment is done in a thread."""
    segments, first = 1000, tmp_path / "t-0"
    for offset in range(segments):
        put_segment(first, offset, [batch(offset)])
    partition = Catalog(tmp_path).partition("t", 0)
    assert partition is not None
    with asyncio.Runner() as runner:
        for end_offset in (segments, segments + 1):
            calls = traced_calls(lambda: runner.run(partition.follow()))
            assert partition.log.end_offset == end_offset
            assert calls.count("stat") < 20
            assert len(calls) < 4 * segments  # a look at what is open for each segment
            put_segment(first, end_offset, [batch(end_offset)])
