"""A log that a reader ends at an offset, or before a time."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import pytest

import kafkafmt as kf
from kafkafmt.log import LogAppender, PartitionLogWriter
from kafkafmt.log.cut import LogCut
from kafkafmt.log.cutting import cut_at, cut_before_time
from kafkafmt.log.gaps import SourceDamage
from kafkafmt.log.partition_log import PartitionLog
from log.samples import DAY, batch, malformed_marker, marker, put_segment, transactional
from log.test_reader import offsets, reader_of


def write(folder: Path, batches: list[bytes]) -> None:
    with LogAppender(folder) as log:
        for one in batches:
            log.append(one)


@pytest.mark.parametrize(
    ("codec", "magic"),
    [(codec, magic) for codec in kf.Codec for magic in (1, 2) if magic == 2 or codec != kf.Codec.ZSTD],
)
@pytest.mark.parametrize("end", [0, 3, 9, 10, 11, 29, 30])
def test_read_when_cut_at_an_offset_then_the_records_before_it(
    tmp_path: Path, codec: kf.Codec, magic: int, end: int
) -> None:
    write(tmp_path / "t-0", [batch(first, 10, codec=codec, magic=magic) for first in (0, 10, 20)])
    reader = reader_of(tmp_path / "t-0", is_committed=True)
    reader.end_at(cut_at(PartitionLog(tmp_path / "t-0"), end))
    assert reader.end_offset == end
    assert offsets(reader) == list(range(end))
    assert reader.offset == end


def test_cut_before_time_when_a_record_is_as_late_then_ends_before_it_and_else_there_is_no_cut(
    tmp_path: Path,
) -> None:
    write(tmp_path / "t-0", [batch(first, 10) for first in (0, 10, 20)])
    log = PartitionLog(tmp_path / "t-0")
    assert cut_before_time(log, DAY + 17) == LogCut(17, {})
    assert cut_before_time(log, DAY - 1) == LogCut(0, {})
    assert cut_before_time(log, DAY + 30) is None


def test_cut_before_time_when_damage_is_skipped_then_regards_the_other_batches(tmp_path: Path) -> None:
    write(tmp_path / "t-0", [transactional(0, 1, 10), batch(10, 10), transactional(20, 2, 10), batch(30, 10)])
    path = tmp_path / "t-0" / f"{0:020}.log"
    data = bytearray(path.read_bytes())
    data[len(transactional(0, 1, 10)) + 16] = 99  # the magic of the second batch
    path.write_bytes(data)
    os.utime(path, (0, 0))  # nothing is writing it
    log = PartitionLog(tmp_path / "t-0")
    with pytest.raises(kf.KafkaFormatError):
        cut_before_time(log, DAY + 33)
    assert cut_before_time(log, DAY + 33, skips_damage=True) == LogCut(33, {1: 0, 2: 20})


def test_cut_at_when_a_marker_is_malformed_then_it_is_damage_at_its_offset_and_its_transaction_is_open(
    tmp_path: Path,
) -> None:
    parts = [
        transactional(0, 1, 2),
        malformed_marker(2, 1),
        transactional(3, 2, 2),
        marker(5, 2, commit=True),
    ]
    put_segment(tmp_path / "t-0", 0, [*parts, batch(6, 4)])
    log, found = PartitionLog(tmp_path / "t-0"), list[SourceDamage]()
    assert cut_at(log, 8, on_damage=found.append) == LogCut(8, {1: 0})
    assert [(one.topic_partition, one.offset, one.next_offset) for one in found] == [(("t", 0), 2, 3)]
    assert f"position {len(parts[0])}" in found[0].message
    with pytest.raises(kf.CorruptRecordError, match=r"t-0 at offset 2: .*control record"):
        cut_at(log, 8)
    assert cut_before_time(log, DAY + 8, skips_damage=True) == LogCut(8, {1: 0})
    with pytest.raises(kf.KafkaFormatError, match="control record"):
        cut_before_time(log, DAY + 8)


def test_cut_before_time_when_a_whole_indexed_segment_is_damaged_then_skipping_it_finds_the_next_record(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "t-0"
    with PartitionLogWriter(folder, segment_bytes=5000, index_interval_bytes=1) as writer:
        for first in range(0, 200, 10):
            writer.append(batch(first, 10))
    log = PartitionLog(folder)
    for segment, following in itertools.pairwise((*log.segments(), None)):
        whole = segment.path.read_bytes()
        segment.path.write_bytes(b"\xff" * len(whole))
        end_offset = 200 if following is None else following.base_offset
        expected = None if following is None else LogCut(end_offset, {})
        assert cut_before_time(log, DAY + end_offset, skips_damage=True) == expected
        segment.path.write_bytes(whole)


def test_read_when_a_transaction_is_open_at_the_cut_then_its_records_are_left_out_and_later_ones_are_not(
    tmp_path: Path,
) -> None:
    parts = [
        transactional(0, 1, 2),  # committed before the cut
        marker(2, 1, commit=True),
        transactional(3, 2, 2),  # committed after it
        transactional(5, 3, 2),  # aborted before it
        marker(7, 3, commit=False),
        batch(8, 2),
        transactional(10, 1, 2),  # committed after it
        batch(12, 3),
        marker(15, 2, commit=True),
        marker(16, 1, commit=True),
    ]
    write(tmp_path / "t-0", parts)
    reader = reader_of(tmp_path / "t-0", is_committed=True)
    cut = cut_at(PartitionLog(tmp_path / "t-0"), 14)
    assert cut.open_transactions == {2: 3, 1: 10}
    reader.end_at(cut)
    assert offsets(reader) == [0, 1, 8, 9, 12, 13]
    whole = reader_of(tmp_path / "t-0", is_committed=True)
    assert offsets(whole) == [0, 1, 3, 4, 8, 9, 10, 11, 12, 13, 14]
