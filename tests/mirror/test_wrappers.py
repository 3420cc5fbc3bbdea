"""Compressed message sets of v0 and v1, whose headers have no first offset: bounds and positions within them."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import pytest

import kafkafmt as kf
from endpoints.endpoint_process import EndpointProcess
from kafkafmt import codecs
from kafkafmt._util.sizes import MIB
from kafkafmt.log.segment import LOG_SUFFIX
from kafkafmt.mirror.memory import MirrorMemory
from kafkafmt.mirror.opening import open_mirror
from kafkafmt.mirror.options import MirrorOptions
from kafkafmt.mirror.sealing import Sealing
from kafkafmt.mirror.targets.spool import SealedSegment
from kafkafmt.mirror.topic_settings import TopicSettings
from mirror.folders import NOW, batch, log_bytes, mirror, put_log, records, stopped
from mirror.running import address
from mirror.test_sealed_target import NotingStore

pytestmark = pytest.mark.slow

HANDLERS = """
import kafkafmt

def again(batch, topic_partition):
    return bytes(batch)

def elsewhere(batch, topic_partition):
    builder = kafkafmt.RecordBatchBuilder(1, "gzip", base_offset=500)
    builder.append(0, None, b"value")
    builder.append(0, None, b"value")
    return builder.build()

def read(batch, topic_partition):
    list(batch)
    return batch

def at_19(batch, topic_partition):
    if batch.last_offset == 19:
        raise ValueError("no")
    return batch
"""


def wrapper(base_offset: int, magic: int = 1) -> bytes:
    builder = kf.RecordBatchBuilder(magic, kf.Codec.GZIP, base_offset=base_offset)
    for offset in range(base_offset, base_offset + 10):
        builder.append(NOW + offset if magic else -1, b"key", b"value-%d" % offset)
    return builder.build()


def unreadable(base_offset: int) -> bytes:
    """A wrapper whose CRC is correct, and whose payload cannot be decompressed."""
    data = bytearray(wrapper(base_offset))
    data[-8] ^= 0xFF  # of the CRC that gzip has of its own
    data[12:16] = zlib.crc32(data[16:]).to_bytes(4, "big")
    return bytes(data)


def large_wrapper(base_offset: int) -> bytes:
    """A wrapper of 10 records that decompresses to more than a mirror opens within 64 MiB."""
    builder = kf.RecordBatchBuilder(1, kf.Codec.GZIP, base_offset=base_offset)
    for offset in range(base_offset, base_offset + 10):
        builder.append(NOW + offset, b"key", bytes(MIB))
    return builder.build()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    put_log(tmp_path / "source" / "t-0", [wrapper(first) for first in range(0, 50, 10)])
    return tmp_path / "source"


@pytest.fixture
def _handlers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module that handlers are in, of a name of its own: what was imported stays."""
    (tmp_path / "handlers_of_wrappers.py").write_text(HANDLERS)
    monkeypatch.syspath_prepend(tmp_path)


def offsets(directory: Path) -> list[int]:
    return [offset for offset, *_ in records(directory)]


def test_folder_when_times_are_within_wrappers_then_has_the_records_between(
    source: Path, tmp_path: Path
) -> None:
    target = tmp_path / "target"
    assert mirror(source, target, "--from", NOW + 13, "--to", NOW + 37).status == 0
    assert records(target) == records(source)[13:37]
    assert mirror(source, target).status == 0
    assert records(target) == records(source)[13:]


@pytest.mark.usefixtures("_handlers")
def test_handler_when_it_returns_the_bytes_of_a_wrapper_then_it_is_copied(
    source: Path, tmp_path: Path
) -> None:
    ended = mirror(source, tmp_path / "target", "--handler", "handlers_of_wrappers:again")
    assert ended.status == 0, ended.errors
    assert log_bytes(tmp_path / "target" / "t-0") == log_bytes(source / "t-0")
    ended = mirror(source, tmp_path / "other", "--handler", "handlers_of_wrappers:elsewhere")
    assert ended.status == 2
    assert "expected offsets 0 to 9 in a wrapper, found 500 to 501" in ended.errors


@pytest.mark.usefixtures("_handlers")
def test_mirror_when_a_handler_fails_at_a_wrapper_then_the_next_one_begins_with_its_first_record(
    source: Path, tmp_path: Path
) -> None:
    target = tmp_path / "target"
    ended = mirror(source, target, "--handler", "handlers_of_wrappers:at_19")
    assert ended.status == 2
    assert "t-0, offset 10: ValueError: no" in ended.errors
    assert offsets(target) == list(range(10))
    assert mirror(source, target).status == 0
    assert records(target) == records(source)


def test_mirror_when_segments_begin_with_wrappers_that_cannot_be_opened_then_copies_them_as_in_the_middle(
    tmp_path: Path,
) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    data = [wrapper(0), unreadable(10), wrapper(20), unreadable(30), unreadable(40)]
    for topic, batches in (("t-0", data), ("u-0", data[1:])):
        (source / topic).mkdir(parents=True)
        (source / topic / "00000000000000000000.log").write_bytes(b"".join(batches))
    ended = mirror(source, target, "--topic-config", "segment.bytes=100")
    assert (ended.status, stopped(ended.summary)) == (0, {})
    for folder in ("t-0", "u-0"):
        assert len([*(target / folder).glob("*.log")]) > 2
        assert log_bytes(target / folder) == log_bytes(source / folder)


def test_sealed_segments_when_they_begin_with_such_wrappers_then_have_all_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are named by the end of the log before them."""
    data = [wrapper(0), unreadable(10), unreadable(20), wrapper(35)]
    (tmp_path / "source" / "t-0").mkdir(parents=True)
    (tmp_path / "source" / "t-0" / "00000000000000000000.log").write_bytes(b"".join(data))
    stored: dict[int, bytes] = {}
    put = NotingStore.put

    def noted(self: NotingStore, segment: SealedSegment, earlier: object) -> None:
        stored[segment.base_offset] = segment.files[LOG_SUFFIX].read_bytes()
        put(self, segment, earlier)

    monkeypatch.setattr(NotingStore, "put", noted)
    store, sealing = NotingStore(tmp_path / "spool"), Sealing(segment_bytes=100)
    options = MirrorOptions(tmp_path / "source", tmp_path / "target", sealing=sealing)
    with open_mirror(options, lambda _: None, lambda *_: store) as running:
        running.run()
    assert not running.statistics.stopped
    assert stored == dict(zip((0, 10, 20, 35), data, strict=True))


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The limits in bytes of all that is decompressed."""
    found: list[int] = []
    decompress = codecs.decompress

    def noted(*arguments: Any, limit: int, **options: Any) -> Any:
        found.append(limit)
        return decompress(*arguments, limit=limit, **options)

    monkeypatch.setattr(codecs, "decompress", noted)
    return found


@pytest.mark.parametrize("are_sealed", [False, True])
def test_mirror_when_segments_begin_with_wrappers_that_exceed_its_memory_then_copies_them(
    tmp_path: Path, limits: list[int], are_sealed: bool
) -> None:
    """They are opened for the names of the segments."""
    data = [wrapper(0), large_wrapper(10), wrapper(20)]
    source, target = tmp_path / "source", tmp_path / "target"
    (source / "t-0").mkdir(parents=True)
    (source / "t-0" / "00000000000000000000.log").write_bytes(b"".join(data))
    options = MirrorOptions(
        source,
        target,
        memory_bytes=64 * MIB,
        topic_settings=TopicSettings.parsed(["segment.bytes=100"]),
        sealing=Sealing(segment_bytes=100),
    )
    store = NotingStore(tmp_path / "spool")
    with open_mirror(options, lambda _: None, (lambda *_: store) if are_sealed else None) as running:
        running.run()
    assert not running.statistics.stopped
    assert {*limits} == {MirrorMemory(64 * MIB, is_deep=False).max_decompressed_bytes}
    if not are_sealed:
        assert log_bytes(target / "t-0") == b"".join(data)


@pytest.mark.usefixtures("_handlers")
def test_handler_when_it_reads_a_wrapper_that_exceeds_the_memory_then_that_is_not_opened_further(
    tmp_path: Path, limits: list[int]
) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    put_log(source / "t-0", [wrapper(0), large_wrapper(10)])
    limits.clear()
    ended = mirror(source, target, "--handler", "handlers_of_wrappers:read", "--memory", "64m")
    most = MirrorMemory(64 * MIB, is_deep=False).max_decompressed_bytes
    assert ended.status == 2
    assert f"with --memory 64M a batch may decompress to {most} bytes; more memory raises" in ended.errors
    assert {*limits} == {most}
    assert offsets(target) == [*range(10)]


@pytest.mark.parametrize("at", [7, 10])
def test_mirror_when_a_wrapper_exceeds_its_memory_then_opens_none_further_and_more_memory_continues_with_it(
    tmp_path: Path, limits: list[int], at: int
) -> None:
    """Nothing tells its first offset then. It is not taken for its last one."""
    source, target = tmp_path / "source", tmp_path / "target"
    put_log(source / "t-0", [batch(0, at), large_wrapper(10)], segment_bytes=1)
    limits.clear()
    most = MirrorMemory(64 * MIB, is_deep=True).max_decompressed_bytes
    ended = mirror(source, target, "--deep", "--codec", "lz4", "--memory", "64m")
    assert (ended.status, stopped(ended.summary)) == (1, {"t-0": at})
    assert {*limits} == {most}
    assert mirror(source, target, "--deep", "--codec", "lz4").status == 0
    assert records(target) == records(source)


@pytest.mark.clients
def test_cluster_when_the_end_is_within_a_wrapper_then_has_the_records_before_it_and_a_later_one_continues(
    source: Path, tmp_path: Path
) -> None:
    target = tmp_path / "target"
    with EndpointProcess(source, log=tmp_path / "serve.log") as server:
        cluster = address(server.address)
        outcome = mirror(cluster, target, "--topics", "t", "--from", NOW + 13, "--to", NOW + 37)
        assert outcome.status == 0, outcome.errors
        assert records(target) == records(source)[13:37]
        assert mirror(cluster, target, "--topics", "t", "--once").status == 0
    assert records(target) == records(source)[13:]
