"""No CRC covers the base offset of a batch. One that contradicts two sound batches alone is damaged."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kafkafmt as kf
from kafkafmt.log import PartitionLog
from log.samples import batch, moved, put_segment
from log.test_reader import read_all, reader_of


class MovedBatch(NamedTuple):
    """A log with a moved batch. sound: the offsets of the other batches. missing: those that the moved one had."""

    contents: list[bytes]
    base_offset: int
    sound: list[int]
    missing: range


@st.composite
def logs(draw: st.DrawFn, *, is_low: bool, most_bytes: int, is_last: bool = False) -> MovedBatch:
    """A log with gaps, as compaction leaves them, in batches of at most `most_bytes`."""
    ranges = list[range]()
    for gap, count in draw(
        st.lists(st.tuples(st.integers(0, 3), st.integers(1, 5)), min_size=5, max_size=12)
    ):
        first = ranges[-1].stop + gap if ranges else 0
        ranges.append(range(first, first + count))
    number = len(ranges) - 1 if is_last else draw(st.integers(2, len(ranges) - 3))
    missing = ranges[number]
    low = (0, ranges[number - 2 if is_last else number - 1][-1])  # the batch after it tells, if there is one
    base_offset = draw(st.integers(*low) if is_low else st.integers(ranges[number + 2][0], 2**31))
    bytes_each = draw(st.sampled_from([1, most_bytes // 3, most_bytes]))
    contents = [batch(one[0], len(one), size=bytes_each // len(one)) for one in ranges]
    contents[number] = moved(contents[number], base_offset)
    sound = [offset for one in ranges if one != missing for offset in one]
    return MovedBatch(contents, base_offset, sound, missing)


@contextmanager
def folder_of(log: MovedBatch) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        path = put_segment(Path(folder) / "t-0", 0, log.contents)
        os.utime(path, (1, 1))  # no broker is writing it
        yield path.parent


@settings(max_examples=50, deadline=None)
@given(logs(is_low=True, most_bytes=100_000))
def test_reader_when_a_base_offset_is_too_low_then_that_batch_alone_is_missing_and_told(
    log: MovedBatch,
) -> None:
    with folder_of(log) as folder:
        found, ((first, next_offset),) = read_all(reader_of(folder))
    assert found == log.sound
    assert first <= log.missing.start < log.missing.stop <= next_offset


@pytest.mark.parametrize("is_low", [True, False])
@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_scan_when_a_base_offset_is_moved_then_no_other_batch_is_lost_or_blamed(
    data: st.DataObject, is_low: bool
) -> None:
    log = data.draw(logs(is_low=is_low, most_bytes=700_000))
    with folder_of(log) as folder:
        read = kf.scan(folder.parent, on_corrupt="skip").to_arrow()["offset"].to_pylist()
        with pytest.raises(kf.InvalidRecordError, match=rf"offsets {log.base_offset} to "):
            kf.scan(folder.parent).to_arrow()
    seeming = range(log.base_offset, log.base_offset + len(log.missing))
    if is_low:
        assert read == log.sound
    else:  # it may be returned before the next run shows that its offsets are too high
        assert [one for one in read if one not in seeming] == [one for one in log.sound if one not in seeming]


@settings(max_examples=50, deadline=None)
@given(logs(is_low=True, most_bytes=100_000, is_last=True))
def test_end_when_the_last_base_offset_is_too_low_then_it_is_that_of_the_batch_before(
    log: MovedBatch,
) -> None:
    with folder_of(log) as folder:
        found, damage = read_all(reader_of(folder))
        with pytest.raises(kf.InvalidRecordError, match=f"found {log.base_offset + len(log.missing) - 1} "):
            PartitionLog(folder).end_offset  # noqa: B018
    assert found == log.sound
    assert damage == [(log.sound[-1] + 1, None)]
