"""Target: the log reader: a partition's folder with one segment or two and their indexes.

Input: options (where to cut the log into two segments, which offset and time to look for) and the sizes of
three indexes, 10 bytes; the indexes; the rest is the log. Whatever the bytes are:

- reading the files, in runs however small, is reading the same bytes in memory;
- the log holds its segments' records, one after the other, from any offset on;
- searches raise documented errors alone; what they find is there, and where the log is sound the indexes change
  nothing about it (the time index where timestamps ascend: it says of those in front of an entry that they
  are lower, and is believed);
- stretches of damage ascend, do not overlap, and end with the file.
"""

from __future__ import annotations

import struct
import tempfile
from pathlib import Path

import kafkafmt as kf
from fuzz.oracle import MAX_DECOMPRESSED_BYTES, memory_records, outcome, until_error
from kafkafmt.log import PartitionLog, Segment, find_damage
from records.samples import as_row

SIZES = struct.Struct(">BBBBHHH")
OPTIONS_LENGTH = SIZES.size
SUFFIXES = (".index", ".timeindex", ".txnindex")


class Input:
    """A log and its indexes, cut out of an input's bytes."""

    def __init__(self, data: bytes) -> None:
        fields = SIZES.unpack(data[: SIZES.size].ljust(SIZES.size, b"\0"))
        self.cut, self.offset, self.time, self.run_bytes, *sizes = fields
        rest = data[SIZES.size :]
        self.indexes: list[bytes] = []
        for size in sizes:
            self.indexes.append(rest[:size])
            rest = rest[size:]
        self.log = rest

    def segments(self) -> list[tuple[int, bytes]]:
        """Base offset and bytes of the one segment, or of two where all in the first is below the second."""
        batches, _ = until_error(memory_records(self.log).batches())
        number = self.cut
        if 0 < number < len(batches):
            below = max(0, *(batch.last_offset for batch in batches[:number]))
            base_offset = outcome(lambda: batches[number].base_offset)
            if base_offset is not None and base_offset > below:
                position = batches[number].position
                return [(0, self.log[:position]), (base_offset, self.log[position:])]
        return [(0, self.log)]


def check(data: bytes) -> None:
    given = Input(data)
    with tempfile.TemporaryDirectory() as folder:
        segments = []
        for base_offset, log in given.segments():
            path = Path(folder, f"{base_offset:020d}.log")
            path.write_bytes(log)
            for suffix, index in zip(SUFFIXES, given.indexes, strict=True):
                path.with_suffix(suffix).write_bytes(index)
            segments.append(Segment(path, is_active=True))
            _check_file(path, log, given.run_bytes + 1)
        is_sound = all(_check_damage(segment) for segment in segments)
        log_reader = PartitionLog(folder, max_decompressed_bytes=MAX_DECOMPRESSED_BYTES)
        _check_log(log_reader, given)
        _check_searches(log_reader, segments, given, is_sound=is_sound)


def _check_file(path: Path, log: bytes, run_bytes: int) -> None:
    in_memory = memory_records(log)
    with kf.FileRecords(path, max_decompressed_bytes=MAX_DECOMPRESSED_BYTES) as records:
        for verify in (True, False):
            expected, error = until_error(map(as_row, in_memory.records(verify=verify)))
            found, other_error = until_error(map(as_row, records.records(verify=verify)))
            assert found == expected
            assert type(error) is type(other_error)
        expected, error = until_error(in_memory.batches())
        runs, other_error = until_error(records.runs(run_bytes=run_bytes))
        found = [bytes(run.batch(number)) for run in runs for number in range(len(run))]
        assert found == [bytes(batch.buffer) for batch in expected]
        assert type(error) is type(other_error)


def _check_log(log_reader: PartitionLog, given: Input) -> None:
    rows, error = until_error(as_row(record) for record in log_reader.records())
    if error is None:
        expected, _ = until_error(as_row(record) for record in memory_records(given.log).records())
        assert rows == expected
    until_error(log_reader.batches(given.offset))
    until_error(log_reader.records(given.offset, given.offset + 5))


def _check_damage(segment: Segment) -> bool:
    """Walk over the damage; is there none?"""
    with segment.open(max_decompressed_bytes=MAX_DECOMPRESSED_BYTES) as records:
        for deep in (False, True):
            stretches = list(find_damage(records, deep=deep))
            ends = [0]
            for one in stretches:
                assert ends[-1] <= one.position < one.end_position <= records.size_in_bytes
                ends.append(one.end_position)
        return not stretches


def _check_searches(
    log_reader: PartitionLog, segments: list[Segment], given: Input, *, is_sound: bool
) -> None:
    first = segments[0]
    offsets = (0, given.offset, 1 << 40)
    time = 1_700_000_000_000 + given.time - 128 if given.time else 0
    by_index = [outcome(lambda offset=offset: first.find_offset(offset)) for offset in offsets]
    next_offset, at_time = outcome(first.find_next_offset), outcome(lambda: first.find_timestamp(time))
    outcome(lambda: log_reader.end_offset)
    outcome(lambda: log_reader.find_offset(given.offset))
    outcome(lambda: log_reader.find_timestamp(time))
    outcome(log_reader.aborted_transactions)
    for suffix in SUFFIXES:
        first.path.with_suffix(suffix).unlink()
    scanned = Segment(first.path, is_active=True)
    outcome(log_reader.aborted_transactions)
    if not is_sound:
        return
    assert by_index == [scanned.find_offset(offset) for offset in offsets]
    assert next_offset == outcome(scanned.find_next_offset)
    with scanned.open() as records:
        times = [batch.max_timestamp for batch in records.batches()]
    if times == sorted(times):
        assert at_time == scanned.find_timestamp(time)
