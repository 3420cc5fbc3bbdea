"""A part of a tiered segment has whole batches, and indexes that fit its name and its bytes."""

from __future__ import annotations

import struct
from itertools import product

import pytest

from data.real_logs import LOGS
from kafkafmt import MemoryRecords
from kafkafmt.records.lost import StoredObjectError
from kafkafmt.storage.tiered.cutting import LostFile, cut_segment
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
        base_offset, cut = cut_segment(SegmentCut(whole, first, following))
        assert base_offset == first
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
    assert ".snapshot" in cut_segment(SegmentCut(whole, 180)).files
    assert ".snapshot" not in cut_segment(SegmentCut(whole, 120, 180)).files


def test_part_of_a_segment_without_an_index_when_cut_then_is_found_by_its_batches() -> None:
    whole, without = segment("segments-0", 120), segment("segments-0", 120, index=b"")
    batches = batches_of(content(whole.log))
    middle = batches[len(batches) // 2][0]
    assert content(cut_segment(SegmentCut(without, middle)).files[".log"]) == content(
        cut_segment(SegmentCut(whole, middle)).files[".log"]
    )


def test_part_of_a_segment_when_its_first_offset_is_within_a_batch_then_begins_with_that_batch() -> None:
    whole = segment("segments-0", 120)
    batches = [one for one in batches_of(content(whole.log)) if one[0] < one[1]]
    for base, last, _ in batches[1:]:
        expected = cut_segment(SegmentCut(whole, base))
        found = cut_segment(SegmentCut(whole, last))
        assert found.base_offset == base
        for suffix, file in expected.files.items():
            assert content(found.files[suffix]) == content(file)


def test_damaged_segment_when_cut_then_reads_of_the_part_tell_the_position() -> None:
    damaged = bytearray(content(segment("segments-0", 120).log))
    damaged[8:12] = bytes(4)
    part = cut_segment(SegmentCut(segment("segments-0", 120, log=bytes(damaged), index=b""), 180))
    assert part.base_offset == 180
    with pytest.raises(
        OSError, match="the batch at position 0 of the log: expected a size of 15 or more, found 0"
    ):
        part.files[".log"].read_at(0, 1)


def test_segment_whose_indexes_are_lost_when_cut_then_its_part_has_the_batches() -> None:
    whole, lost = segment("segments-0", 120), segment("segments-0", 120)
    error = StoredObjectError("indexes", "the object is missing")
    lost.files[".index"] = LostFile(8, 0, error)  # type: ignore[index]
    lost.files[".txnindex"] = LostFile(8, 0, error)  # type: ignore[index]
    found = cut_segment(SegmentCut(lost, 180)).files
    assert content(found[".log"]) == content(cut_segment(SegmentCut(whole, 180)).files[".log"])
    for suffix in (".index", ".txnindex"):
        with pytest.raises(StoredObjectError, match="indexes: the object is missing"):
            content(found[suffix])
