"""A log directory mirrored to another with handlers, or record by record, by the command line."""

from __future__ import annotations

from operator import attrgetter
from pathlib import Path

import pytest

import kafkafmt as kf
from kafkafmt.log import LogDirectory
from log.samples import marker
from mirror.folders import NOW, batch, batches, log_bytes, mirror, put_log, records, stopped

pytestmark = pytest.mark.slow

HANDLERS = """
import kafkafmt as kf

def drop_every_other(batch, partition):
    return None if batch.base_offset // 10 % 2 else batch

def replaced(batch, partition):
    assert partition == ("t", 0)
    builder = kf.RecordBatchBuilder(codec=kf.Codec.ZSTD)
    for record in batch:
        builder.append(record.timestamp, record.key, b"new", record.headers)
    return builder.build()

def too_many(batch, partition):
    builder = kf.RecordBatchBuilder()
    for _ in range(11):
        builder.append(0, b"k", b"v")
    return builder.build()

def nonsense(batch, partition):
    return b"no batch"

def damaged(batch, partition):
    data = bytearray(batch.buffer)
    data[-1] ^= 1
    return data

def failing(batch, partition):
    if batch.base_offset == 150:
        raise KeyError("what is it?")
    return batch

def deep(record, partition):
    if record.offset % 10 == 3:
        return None
    if record.offset % 10 == 4:
        return b"k", None, [("h", None)], record.timestamp + 1
    return record

def deep_failing(record, partition):
    assert record.offset < 157 or 1 // 0
    return record
"""


@pytest.fixture
def _handlers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module that handlers are in, of a name of its own: what was imported stays."""
    folder = tmp_path / "handlers"
    folder.mkdir()
    (folder / "mirror_handlers.py").write_text(HANDLERS)
    monkeypatch.syspath_prepend(folder)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    put_log(tmp_path / "source" / "t-0", batches())
    return tmp_path / "source"


@pytest.mark.usefixtures("_handlers")
def test_handler_drops_batches(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    ended = mirror(source, target, "--handler", "mirror_handlers:drop_every_other")
    assert ended.status == 0
    assert log_bytes(target / "t-0") == b"".join(batches()[::2])


@pytest.mark.usefixtures("_handlers")
def test_handler_puts_other_batches_in_place_at_the_offsets_of_the_source(
    source: Path, tmp_path: Path
) -> None:
    target = tmp_path / "target"
    ended = mirror(source, target, "--handler", "mirror_handlers:replaced")
    assert ended.status == 0
    expected = [(offset, time, key, b"new", headers) for offset, time, key, _, headers in records(source)]
    assert records(target) == expected


@pytest.mark.parametrize(
    ("handler", "offset", "message"),
    [
        ("too_many", 0, "expected at most 10 offsets, found 11"),
        ("nonsense", 0, "expected whole batches"),
        ("damaged", 0, "CRC mismatch"),
        ("failing", 150, "KeyError: 'what is it?'"),
    ],
)
@pytest.mark.usefixtures("_handlers")
def test_handler_that_fails_ends_the_mirror_in_front_of_its_batch(
    handler: str, offset: int, message: str, source: Path, tmp_path: Path
) -> None:
    target = tmp_path / "target"
    ended = mirror(source, target, "--handler", f"mirror_handlers:{handler}")
    assert ended.status == 2
    line = ended.errors.splitlines()[-1]
    assert line.startswith(f"kafkafmt: handler: t-0, offset {offset}: ")
    assert message in line
    assert log_bytes(target / "t-0") == b"".join(batches(0, offset))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("mirror_handlers", "expected MODULE:CALLABLE"),
        ("mirror_handlers:no", "has no attribute 'no'"),
        ("missing:no", "No module named 'missing'"),
        ("kafkafmt:__version__", "expected a callable, found str"),
    ],
)
@pytest.mark.usefixtures("_handlers")
def test_handler_that_is_not_there_is_one_line(name: str, message: str, source: Path, tmp_path: Path) -> None:
    ended = mirror(source, tmp_path / "target", "--handler", name)
    assert ended.status == 2
    assert message in ended.errors
    assert ended.errors.count("\n") == 1


@pytest.mark.usefixtures("_handlers")
def test_deep_handler_sees_each_record_and_offsets_stay(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    ended = mirror(source, target, "--deep", "--handler", "mirror_handlers:deep")
    assert ended.status == 0
    expected = [
        (offset, time + 1, b"k", None, [("h", None)])
        if offset % 10 == 4
        else (offset, time, key, value, headers)
        for offset, time, key, value, headers in records(source)
        if offset % 10 != 3
    ]
    assert records(target) == expected


def test_deep_handler_when_batches_are_of_every_kind_then_producers_timestamps_and_horizons_stay(
    tmp_path: Path,
) -> None:
    """A sequence without a producer id is what clients write who ignore both, such as sarama."""
    builders = [kf.RecordBatchBuilder(magic, kf.Codec.GZIP, base_offset=3 * magic) for magic in (0, 1)]
    for builder in builders:
        for number in range(3):
            builder.append(NOW, b"key", b"value-%d" % number)
    data = [
        *(builder.build() for builder in builders),
        batch(6, 3, base_sequence=0),
        batch(9, 3, producer_id=5, producer_epoch=1, base_sequence=7, is_transactional=True),
        marker(12, 5, commit=True),
        batch(13, 3, delete_horizon_ms=NOW + 9),
        batch(16, 3, timestamp_type=kf.TimestampType.LOG_APPEND_TIME, log_append_time=NOW),
    ]
    source, target = tmp_path / "source", tmp_path / "target"
    put_log(source / "t-0", data)
    ended = mirror(source, target, "--deep", "--handler", "mirror.handlers:as_it_is")
    assert (ended.status, stopped(ended.summary)) == (0, {})
    assert records(target) == records(source)
    kept = attrgetter("base_sequence", "producer_id", "is_transactional", "delete_horizon_ms")
    before, after = (kf.MemoryRecords(log_bytes(path / "t-0")).batches() for path in (source, target))
    assert [kept(batch) for batch in after] == [kept(batch) for batch in before]


@pytest.mark.usefixtures("_handlers")
def test_deep_handler_that_fails_ends_the_mirror_in_front_of_its_batch(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    ended = mirror(source, target, "--deep", "--handler", "mirror_handlers:deep_failing")
    assert ended.status == 2
    assert "handler: t-0, offset 157: ZeroDivisionError" in ended.errors
    assert records(target) == records(source)[:150]


def test_deep_with_a_codec_recompresses(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    assert mirror(source, target, "--deep", "--codec", "lz4").status == 0
    assert records(target) == records(source)
    found = {batch.codec for batch in LogDirectory(target).partition(("t", 0)).batches()}
    assert found == {kf.Codec.LZ4}
