"""Reading from a position on, and how many bytes whole batches take."""

from __future__ import annotations

from pathlib import Path

import pytest

import kafkafmt as kf
import reference as ref
from kafkafmt.log import Segment
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
