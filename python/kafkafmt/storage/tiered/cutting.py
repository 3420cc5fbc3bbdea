"""The files of a part of a segment, if other segments have the rest of its offsets. Whole batches are cut."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from kafkafmt._util.sizes import MIB
from kafkafmt.records.lost import StoredObjectError
from kafkafmt.storage.tiered.segments import SegmentCut
from kafkafmt.storage.views import BytesFile, ViewFile

# The beginning of a batch: base offset, size of what follows; then 4 bytes of leader epoch or CRC, and the magic.
_BATCH = struct.Struct(">qi4xb")
_OVERHEAD = 12
_LAST_OFFSET_DELTA_POSITION = 23
_HEADER_BYTES = 27
_WINDOW_BYTES = MIB
_OFFSET_ENTRY = struct.Struct(">ii")
_TIME_ENTRY = struct.Struct(">qi")
_TRANSACTION_ENTRY = struct.Struct(">hqqqq")


@dataclass(frozen=True)
class FileRange:
    """The bytes of another file from `start` to `end`, as a `ViewFile`."""

    file: ViewFile
    start: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.start

    @property
    def mtime_ns(self) -> int:
        return self.file.mtime_ns

    def read_at(self, position: int, size: int) -> bytes | memoryview:
        size = min(size, self.size - position)
        if size <= 0:
            return b""
        try:
            return self.file.read_at(self.start + position, size)
        except StoredObjectError as error:
            if error.lost is not None:
                error.lost = error.lost[0] - self.start, error.lost[1] - self.start
            raise


def cut_files(cut: SegmentCut) -> Mapping[str, ViewFile]:
    """Return the files of a part of a segment by suffix, for a log segment whose base offset is the first one of `cut`.

    Indexes have the entries of the part. The snapshot of producers is left out if the end is cut off: it is the
    state after the segment.
    """
    segment = cut.segment
    if cut.is_whole:
        return segment.files
    first = max(cut.first_offset, segment.base_offset)
    start = 0 if first == segment.base_offset else _position_of(cut, first)
    end = segment.size if cut.next_offset is None else _position_of(cut, cut.next_offset)
    files = {suffix: file for suffix, file in segment.files.items() if suffix not in _CUT_SUFFIXES}
    if cut.next_offset is not None:
        files.pop(".snapshot", None)
    files[".log"] = FileRange(segment.log, start, max(start, end))
    moved = first - segment.base_offset
    index = [
        (offset - moved, position - start) for offset, position in _entries(cut, ".index", _OFFSET_ENTRY)
    ]
    files[".index"] = _file(
        _OFFSET_ENTRY,
        [one for one in index if one[0] >= 0 and 0 <= one[1] < end - start],
        segment.log.mtime_ns,
    )
    most = (cut.next_offset if cut.next_offset is not None else segment.base_offset + 2**31) - first
    times = [(time, offset - moved) for time, offset in _entries(cut, ".timeindex", _TIME_ENTRY)]
    files[".timeindex"] = _file(
        _TIME_ENTRY, [one for one in times if 0 <= one[1] < most], segment.log.mtime_ns
    )
    if ".txnindex" in segment.files:
        aborted = _entries(cut, ".txnindex", _TRANSACTION_ENTRY)
        files[".txnindex"] = _file(
            _TRANSACTION_ENTRY,
            [one for one in aborted if first <= one[3] < first + most],
            segment.log.mtime_ns,
        )
    return files


_CUT_SUFFIXES = (".log", ".index", ".timeindex", ".txnindex")


def _entries(cut: SegmentCut, suffix: str, entry: struct.Struct) -> Iterator[tuple[int, ...]]:
    file = cut.segment.files.get(suffix)
    data = b"" if file is None else bytes(file.read_at(0, file.size))
    return entry.iter_unpack(data[: len(data) // entry.size * entry.size])


def _file(entry: struct.Struct, entries: list[tuple[int, ...]], mtime_ns: int) -> BytesFile:
    return BytesFile(b"".join(entry.pack(*one) for one in entries), mtime_ns)


def _position_of(cut: SegmentCut, offset: int) -> int:
    """Return the position of the first batch that has `offset` or later ones; the end of the log without one."""
    segment, position = cut.segment, 0
    for relative, found in _entries(cut, ".index", _OFFSET_ENTRY):
        # An entry is the last offset of a batch, and the position of that batch.
        if segment.base_offset + relative < offset:
            position = found
    window, begin = memoryview(b""), 0
    while position + _HEADER_BYTES <= segment.size:
        if not begin <= position <= begin + len(window) - _HEADER_BYTES:
            begin, window = position, memoryview(segment.log.read_at(position, _WINDOW_BYTES))
        base_offset, size, magic = _BATCH.unpack_from(window, position - begin)
        if size < _HEADER_BYTES - _OVERHEAD:
            message = (
                f"the batch at position {position} of the log: expected a size of 15 or more, found {size}"
            )
            raise StoredObjectError(getattr(segment.log, "path", segment.segment_id), message)
        last_offset = base_offset
        if magic >= 2:
            (delta,) = struct.unpack_from(">i", window, position - begin + _LAST_OFFSET_DELTA_POSITION)
            last_offset += delta
        if last_offset >= offset:
            return position
        position += _OVERHEAD + size
    return segment.size
