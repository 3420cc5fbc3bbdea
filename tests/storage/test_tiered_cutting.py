"""A part of a tiered segment has whole batches, and indexes that fit its name and its bytes."""

from __future__ import annotations

import struct
from itertools import product

import pytest

from data.real_logs import LOGS
from kafkafmt import MemoryRecords
from kafkafmt.storage.tiered.cutting import cut_files
from kafkafmt.storage.tiered.segments import RemoteSegment, SegmentCut
from kafkafmt.storage.views import BytesFile, ViewFile

SUFFIXES = (".log", ".index", ".timeindex", ".txnindex", ".snapshot")


def segment(folder: str, base: int, **changed: bytes) -> RemoteSegment:
    found = {one: LOGS / folder / f"{base:020d}{one}" for one in SUFFIXES}
    files: dict[str, ViewFile] = {
        suffix: BytesFile(path.read_bytes()) for suffix, path in found.items() if path.exists()
    }
    files |= {f".{name}": BytesFile(data) for name, data in changed.items()}
    return RemoteSegment(folder, "", 0, "", base, -1, (), files)


def content(file: ViewFile) -> bytes:
    return bytes(file.read_at(0, file.size))


def batches_of(data: bytes) -> list[tuple[int, int, int]]:
    """Base offset, last offset and position of each batch."""
    return [(one.base_offset, one.last_offset, one.position) for one in MemoryRecords(data).batches()]


@pytest.mark.parametrize(
    ("folder", "base"), [("segments-0", 120), ("transactions-0", 151), ("legacy-v1-0", 0)]
)
def test_part_of_a_segment_when_cut_between_any_batches_then_has_those_and_their_index_entries(
    folder: str, base: int
) -> None:
    whole = segment(folder, base)
    batches = batches_of(content(whole.log))
    last = batches[-1][1]
    starts = [one[0] for one in batches[:: max(len(batches) // 6, 1)]]
    for first, following in product(starts, [*starts, last + 1, None]):
        if following is not None and following <= first:
            continue
        cut = cut_files(SegmentCut(whole, first, following))
        found = [one[:2] for one in batches_of(content(cut[".log"]))]
        wanted = [one[:2] for one in batches if one[0] >= first and (following is None or one[1] < following)]
        assert found == wanted
        positions = {position: (low, high) for low, high, position in batches_of(content(cut[".log"]))}
        for relative, position in struct.iter_unpack(">ii", content(cut[".index"])):
            low, high = positions[position]
            assert low <= first + relative <= high
        for _, relative in struct.iter_unpack(">qi", content(cut[".timeindex"])):
            assert first <= first + relative <= found[-1][1]


def test_part_of_a_segment_when_its_end_is_cut_off_then_has_no_snapshot_of_producers() -> None:
    whole = segment("segments-0", 120)
    assert ".snapshot" in cut_files(SegmentCut(whole, 180))
    assert ".snapshot" not in cut_files(SegmentCut(whole, 120, 180))


def test_part_of_a_segment_without_an_index_when_cut_then_is_found_by_its_batches() -> None:
    whole, without = segment("segments-0", 120), segment("segments-0", 120, index=b"")
    batches = batches_of(content(whole.log))
    middle = batches[len(batches) // 2][0]
    assert content(cut_files(SegmentCut(without, middle))[".log"]) == content(
        cut_files(SegmentCut(whole, middle))[".log"]
    )


def test_damaged_segment_when_cut_then_the_error_tells_the_position() -> None:
    damaged = bytearray(content(segment("segments-0", 120).log))
    damaged[8:12] = bytes(4)
    with pytest.raises(
        OSError, match="the batch at position 0 of the log: expected a size of 15 or more, found 0"
    ):
        cut_files(SegmentCut(segment("segments-0", 120, log=bytes(damaged), index=b""), 180))
