"""A mirror whose target is a log directory in an object store."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote, urlencode

import pytest

from data.real_logs import LOGS, NAMES
from faulty_store import FaultyStore, faulty_s3
from file_systems import BUCKET
from kafkafmt.log import LogDirectory
from kafkafmt.log.checkpoints import LEADER_EPOCH_CHECKPOINT, leader_epochs
from kafkafmt.storage import storage_path, write_file
from mirror.folders import batch, batches, mirror, put_log
from mirror.running import Mirror, wait_until
from store_folders import files_in, uri_of

pytestmark = pytest.mark.slow


@pytest.fixture
def store(s3: object, s3_options: Mapping[str, str]) -> str:
    """The URI of a bucket: `format` fills in the path."""
    key, secret = (quote(s3_options[name], safe="") for name in ("access_key", "secret_key"))
    query = urlencode({one: s3_options[one] for one in ("endpoint_override", "scheme", "region")})
    return f"s3://{key}:{secret}@{BUCKET}/{{}}?{query}"


def bytes_of(path: object, topic: str, partition: int = 0) -> bytes:
    log = LogDirectory(path).partition(topic, partition)  # type: ignore[call-overload]
    return b"".join(bytes(batch.buffer) for batch in log.batches())


@pytest.mark.full
def test_mirror_when_the_target_is_in_an_object_store_then_it_has_the_batches_a_folder_gets(
    store: str, tmp_path: Path
) -> None:
    target = store.format("real")
    assert mirror(LOGS, tmp_path / "copy").status == 0
    outcome = mirror(LOGS, target, "--spool", tmp_path)
    assert outcome.status == 0, outcome.errors
    assert "secret" not in outcome.errors
    path = storage_path(target)
    for name in NAMES:
        topic, _, partition = name.rpartition("-")
        copied = bytes_of(path, topic, int(partition))
        assert copied
        assert copied == bytes_of(tmp_path / "copy", topic, int(partition))
    assert leader_epochs(path / NAMES[0] / LEADER_EPOCH_CHECKPOINT)
    again = mirror(LOGS, target, "--spool", tmp_path)
    assert (again.status, again.summary["records"]) == (0, 0)
    assert not list(tmp_path.glob(".kafkafmt-spool*"))


def test_mirror_when_the_source_has_grown_then_the_store_continues_at_the_end_of_its_last_segment(
    store: str, tmp_path: Path
) -> None:
    target, source = store.format("grown"), tmp_path / "source"
    put_log(source / "t-0", batches(0, 300))
    for first, stop in ((300, 600), (600, 650)):
        assert mirror(source, target, "--segment-bytes", "8k", "--spool", tmp_path).status == 0
        put_log(source / "t-0", batches(first, stop))
    outcome = mirror(source, target, "--spool", tmp_path)
    assert outcome.summary["records"] == 50
    path = storage_path(target)
    assert bytes_of(path, "t") == bytes_of(source, "t")


@pytest.mark.parametrize("start", [0, 500])
def test_mirror_when_partitions_have_no_records_then_the_store_has_them_as_a_folder_has(
    store: str, tmp_path: Path, start: int
) -> None:
    target, source = store.format(f"empty-{start}"), tmp_path / "source"
    put_log(source / "t-0", batches(0, 100))
    for partition in (0, 1):
        (source / f"empty-{partition}").mkdir()
        (source / f"empty-{partition}" / f"{start:020}.log").touch()
    for _ in range(2):
        assert mirror(source, target, "--spool", tmp_path).status == 0
        found = LogDirectory(storage_path(target))
        assert [str(one) for one in found.partitions()] == ["empty-0", "empty-1", "t-0"]
        assert found.partition("empty", 1).end_offset == start
    assert [one.base_offset for one in found.partition("t", 0).segments()] == [0]
    (source / "empty-1" / f"{start:020}.log").unlink()
    put_log(source / "empty-1", batches(start, start + 100))
    outcome = mirror(source, target, "--spool", tmp_path)
    assert (outcome.status, outcome.summary["records"]) == (0, 100)
    assert bytes_of(storage_path(target), "empty", 1) == bytes_of(source, "empty", 1)


def test_mirror_when_the_segment_size_of_a_topic_is_none_then_one_line_says_so_and_nothing_is_stored(
    store: str, tmp_path: Path
) -> None:
    put_log(tmp_path / "source" / "t-0", batches(0, 100))
    target = store.format("wrong-size")
    outcome = mirror(tmp_path / "source", target, "--topic-config", "segment.bytes=many")
    assert outcome.status == 2
    assert "--topic-config: segment.bytes: expected 14 to 2^31 - 1, found 'many'" in outcome.errors
    assert not storage_path(target).exists()
    assert mirror(tmp_path / "source", target).summary["records"] == 100


def test_mirror_when_another_topic_of_the_store_has_an_invalid_segment_size_then_its_own_topics_are_mirrored(
    store: str, tmp_path: Path
) -> None:
    put_log(tmp_path / "source" / "t-0", batches(0, 100))
    target = storage_path(store.format("edited"))
    write_file(target / "topics.ini", b"[other]\npartitions = 1\nsegment.bytes = many\n")
    outcome = mirror(tmp_path / "source", store.format("edited"))
    assert (outcome.status, outcome.summary["records"]) == (0, 100), outcome.errors


def test_mirror_when_one_of_several_segments_cannot_be_stored_then_the_next_run_continues_before_it(
    tmp_path: Path,
) -> None:
    source = tmp_path / "source"
    put_log(source / "t-0", batches(0, 600))
    with faulty_s3() as store:
        target = uri_of(store.options, "refused")
        store.fail("PUT", f"{0:020}.log", how="403")
        refused = mirror(source, target, "--segment-bytes", "4k", "--spool", tmp_path)
        assert refused.status == 2
        assert f"{0:020}.log" in refused.errors
        outcome = mirror(source, target, "--spool", tmp_path)
        assert (outcome.status, outcome.summary["records"]) == (0, 600)
        assert bytes_of(storage_path(target), "t") == bytes_of(source, "t")


def test_mirror_when_it_is_killed_before_leader_epochs_are_stored_then_the_next_run_stores_all(
    tmp_path: Path,
) -> None:
    source = tmp_path / "source"
    put_log(source / "t-0", [batch(0, partition_leader_epoch=1), batch(10, partition_leader_epoch=2)])
    with faulty_s3() as store:
        target = uri_of(store.options, "epochs")
        store.fail("PUT", LEADER_EPOCH_CHECKPOINT, how="403")
        assert mirror(source, target, "--spool", tmp_path).status == 2
        put_log(source / "t-0", [batch(20, partition_leader_epoch=2), batch(30, partition_leader_epoch=3)])
        assert mirror(source, target, "--spool", tmp_path).status == 0
        found = leader_epochs(storage_path(target) / "t-0" / LEADER_EPOCH_CHECKPOINT)
        assert found == [(1, 0), (2, 10), (3, 30)]


@contextmanager
def suspended(store: FaultyStore, source: Path, tmp_path: Path, *options: object) -> Iterator[Mirror]:
    """A mirror that continues after another one has stored all records, while it was storing its first segment."""
    target, direct = (uri_of(one, tmp_path.name) for one in (store.options, store.direct_options))
    # Held while the mirror is frozen: after its look at the store, it could replace a file of the other one.
    fault = store.fail("PUT", ".timeindex", how="held")
    with Mirror(source, target, "--spool", tmp_path / "late", *options, log=tmp_path / "log") as late:
        wait_until(lambda: fault.hits > 0, late)
        with late.frozen():
            store.heal()
            other = mirror(source, direct, "--segment-bytes", "4k", "--spool", tmp_path / "other")
            assert other.status == 0
            stored = files_in(direct)
        wait_until(lambda: "another mirror has stored these records" in late.said)
        assert files_in(direct) == stored
        yield late


def test_mirror_when_it_was_suspended_while_another_one_stored_then_replaces_nothing(tmp_path: Path) -> None:
    source = tmp_path / "source"
    put_log(source / "t-0", batches(0, 600))
    with faulty_s3() as store:
        with suspended(store, source, tmp_path) as late:
            late.summary()  # it begins again, and finds that the other one has stored all
        assert bytes_of(storage_path(uri_of(store.options, tmp_path.name)), "t") == bytes_of(source, "t")


def test_mirror_when_it_follows_and_was_suspended_then_continues_where_the_other_one_ends(
    tmp_path: Path,
) -> None:
    source = tmp_path / "source"
    put_log(source / "t-0", batches(0, 600))
    options = ("--follow", "--segment-bytes", "4k", "--segment-age", 0.1, "--commit-interval", 0.1)
    with faulty_s3() as store:
        target = uri_of(store.options, tmp_path.name)
        with suspended(store, source, tmp_path, *options) as late:
            put_log(source / "t-0", batches(600, 650))
            wait_until(lambda: bytes_of(storage_path(target), "t") == bytes_of(source, "t"), late)
            late.stop()
