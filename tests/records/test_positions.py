"""Reading from a position on, and how many bytes whole batches take."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import kafkafmt as kf
import reference as ref
from kafkafmt.log import Segment
from kafkafmt.records.remote import RemoteRecords
from measure import peak_bytes
from records.samples import DAY, EVERY_KIND
from reference import Row

BATCHES = [ref.batch_of([Row(number, DAY, None, bytes(50))], base_offset=number) for number in range(4)]
WHOLE = b"".join(BATCHES)


def opened(kind: str, data: bytes, folder: Path) -> kf.Records:
    if kind == "memory":
        return kf.MemoryRecords(data)
    path = folder / "0.log"
    path.write_bytes(b"before" + data)
    return kf.FileRecords(path, 6)


@pytest.mark.parametrize("kind", ["memory", "file"])
@pytest.mark.parametrize("tail", [b"", BATCHES[0][:-1], BATCHES[0][:5], bytes(100)])
@pytest.mark.parametrize("whole", [b"", WHOLE, EVERY_KIND])
def test_valid_bytes_when_the_end_is_no_whole_batch_then_those_of_the_batches(
    kind: str, tail: bytes, whole: bytes, tmp_path: Path
) -> None:
    records = opened(kind, whole + tail, tmp_path)
    assert records.valid_bytes == len(whole)
    assert records.size_in_bytes == len(whole) + len(tail)
    assert records.valid_bytes == sum(batch.size_in_bytes for batch in records.batches())


def test_valid_bytes_when_a_segment_ends_in_a_part_of_a_batch_then_without_it(tmp_path: Path) -> None:
    path = tmp_path / f"{0:020d}.log"
    path.write_bytes(WHOLE + BATCHES[0][:-1])
    with Segment(path).open() as records:
        assert records.valid_bytes == len(WHOLE)


def test_valid_bytes_when_the_chain_breaks_then_the_error_of_the_batches() -> None:
    with pytest.raises(kf.CorruptRecordError) as caught:
        _ = kf.MemoryRecords(WHOLE + bytes(8) + b"\0\0\0\1" + bytes(100)).valid_bytes
    assert caught.value.position == len(WHOLE)


@pytest.mark.parametrize("kind", ["memory", "file"])
def test_records_when_one_batch_is_damaged_then_reading_goes_on_behind_it(kind: str, tmp_path: Path) -> None:
    damaged = bytearray(WHOLE)
    damaged[len(BATCHES[0]) + len(BATCHES[1]) - 1] ^= 1
    records = opened(kind, bytes(damaged), tmp_path)
    found, position = [], None
    while True:
        try:
            for record in records.records(position):
                found.append(record.offset)  # noqa: PERF401, to keep those before an error
            break
        except kf.CorruptRecordError as error:
            position = records.position_after(error)
    assert found == [0, 2, 3]
    assert [batch.base_offset for batch in records.batches(position)] == [2, 3]


@pytest.mark.parametrize("read", ["batches", "records"])
def test_position_when_at_the_end_then_nothing_and_outside_a_value_error(read: str, tmp_path: Path) -> None:
    for records in (kf.MemoryRecords(WHOLE), opened("file", WHOLE, tmp_path)):
        start, end = records.start_position, records.end_position
        assert list(getattr(records, read)(end)) == []
        assert len(list(getattr(records, read)(start))) == 4
        for outside in (start - 1, end + 1):
            with pytest.raises(ValueError, match=f"position: .* within {start} to {end}, found {outside}"):
                getattr(records, read)(outside)
        with pytest.raises(TypeError, match="position: expected an int, found str"):
            getattr(records, read)("0")


SOURCES = ["memory", "file", "segment", "remote"]


def source(kind: str, folder: Path) -> Any:
    """Return the records of WHOLE, from position 0, in an object that `close` closes."""
    if kind == "memory":
        records: Any = kf.MemoryRecords(WHOLE)
        records.close = lambda: None
        return records
    path = folder / f"{0:020d}.log"
    path.write_bytes(WHOLE)
    if kind == "remote":
        fs = pytest.importorskip("pyarrow.fs")
        return RemoteRecords(fs.LocalFileSystem(), str(path))
    return kf.FileRecords(path) if kind == "file" else Segment(path).open()


@pytest.mark.parametrize("kind", SOURCES)
@pytest.mark.parametrize(
    ("read", "message"),
    [
        (lambda records: records.read_at(-1, 2), "position: expected 0 to .*, found -1"),
        (lambda records: records.read_at(0, -1), "size: expected 0 to .*, found -1"),
        (lambda records: records.is_zero_from(-1), "position: expected 0 to .*, found -1"),
        (lambda records: records.size_at(-1), "position: expected 0 to .*, found -1"),
        (lambda records: records.first_offset_at(-1), "position: expected 0 to .*, found -1"),
        (lambda records: records.first_run(-1, 100, bytearray(100)), "position: expected 0 to .*, found -1"),
        (lambda records: records.find_batch_start(100, -1), "position: expected 0 to .*, found -1"),
    ],
)
def test_records_when_a_position_or_size_is_negative_then_value_error_names_it(
    kind: str, read: Callable[[kf.Records], object], message: str, tmp_path: Path
) -> None:
    with closing(source(kind, tmp_path)) as records, pytest.raises(ValueError, match=message):
        read(records)


@pytest.mark.parametrize("kind", SOURCES)
def test_read_at_when_it_reaches_past_the_end_then_the_bytes_before_it(kind: str, tmp_path: Path) -> None:
    with closing(source(kind, tmp_path)) as records:
        for size in (10, 2**30, 2**63 - 1):
            for position in (0, 1, len(WHOLE), len(WHOLE) + 1, 2**62):
                assert bytes(records.read_at(position, size)) == WHOLE[position : position + size]
        assert peak_bytes(lambda: records.read_at(1, 2**28)) < 2**20


@pytest.mark.parametrize("kind", SOURCES)
def test_first_offset_at_when_at_or_after_the_end_then_none(kind: str, tmp_path: Path) -> None:
    with closing(source(kind, tmp_path)) as records:
        assert records.first_offset_at(len(BATCHES[0])) == 1
        for position in (len(WHOLE) - 1, len(WHOLE), len(WHOLE) + 1):
            assert records.first_offset_at(position) is None
