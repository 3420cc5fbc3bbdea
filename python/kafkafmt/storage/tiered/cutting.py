"""The files of a part of a segment, if other segments have the rest of its offsets. Whole batches are cut."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

from kafkafmt._util.sizes import MIB
from kafkafmt.records.lost import StoredObjectError
from kafkafmt.storage.tiered.segments import RemoteSegment, SegmentCut
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


@dataclass(frozen=True)
class LostFile:
    """A `ViewFile` whose bytes cannot be read, as the object from which they are cut is missing or damaged."""

    size: int
    mtime_ns: int
    error: StoredObjectError

    def read_at(self, position: int, size: int) -> bytes | memoryview:
        raise StoredObjectError(self.error.filename, self.error.strerror or "")


class SegmentPart(NamedTuple):
    """The files of a part of a segment, by suffix. base_offset: the one for their names."""

    base_offset: int
    files: Mapping[str, ViewFile]


class _Batches(NamedTuple):
    """Batches of a segment: the base offset of the first one, and their positions in the log."""

    base_offset: int
    start: int
    end: int


def cut_segment(cut: SegmentCut) -> SegmentPart:
    """Return the part of a segment as a log segment. It begins with the batch that has the first offset of `cut`.

    Indexes have the entries of the part. The snapshot of producers is left out if the end is cut off: it is the
    state after the segment. If the log cannot be read where it is cut, it is lost as a whole.
    """
    segment = cut.segment
    if cut.is_whole:
        return SegmentPart(segment.base_offset, segment.files)
    files = {suffix: file for suffix, file in segment.files.items() if suffix not in _CUT_SUFFIXES}
    if cut.next_offset is not None:
        files.pop(".snapshot", None)
    try:
        part = _batches_of(cut)
    except StoredObjectError as error:
        for suffix in _CUT_SUFFIXES & segment.files.keys():
            files[suffix] = LostFile(segment.files[suffix].size, segment.log.mtime_ns, error)
        return SegmentPart(max(cut.first_offset, segment.base_offset), files)
    base, start, end = part
    files[".log"] = FileRange(segment.log, start, end)
    moved = base - segment.base_offset
    after = segment.base_offset + 2**31 if cut.next_offset is None else cut.next_offset

    def offset_entries(found: Iterable[tuple[int, ...]]) -> Iterator[tuple[int, ...]]:
        entries = ((offset - moved, position - start) for offset, position in found)
        return (one for one in entries if one[0] >= 0 and 0 <= one[1] < end - start)

    def time_entries(found: Iterable[tuple[int, ...]]) -> Iterator[tuple[int, ...]]:
        return ((time, offset - moved) for time, offset in found if 0 <= offset - moved < after - base)

    def aborted(found: Iterable[tuple[int, ...]]) -> Iterator[tuple[int, ...]]:
        return (one for one in found if base <= one[3] < after)

    files[".index"] = _index(segment, ".index", _OFFSET_ENTRY, offset_entries)
    files[".timeindex"] = _index(segment, ".timeindex", _TIME_ENTRY, time_entries)
    if ".txnindex" in segment.files:
        files[".txnindex"] = _index(segment, ".txnindex", _TRANSACTION_ENTRY, aborted)
    return SegmentPart(base, files)


_CUT_SUFFIXES = {".log", ".index", ".timeindex", ".txnindex"}


def _index(
    segment: RemoteSegment,
    suffix: str,
    entry: struct.Struct,
    of_part: Callable[[Iterable[tuple[int, ...]]], Iterable[tuple[int, ...]]],
) -> ViewFile:
    """Return an index of a part, with the entries of the segment's one for which `of_part` returns others."""
    try:
        entries = of_part(_entries(segment, suffix, entry))
    except StoredObjectError as error:
        return LostFile(segment.files[suffix].size, segment.log.mtime_ns, error)
    return BytesFile(b"".join(entry.pack(*one) for one in entries), segment.log.mtime_ns)


def _entries(segment: RemoteSegment, suffix: str, entry: struct.Struct) -> Iterator[tuple[int, ...]]:
    file = segment.files.get(suffix)
    data = b"" if file is None else bytes(file.read_at(0, file.size))
    return entry.iter_unpack(data[: len(data) // entry.size * entry.size])


def _batches_of(cut: SegmentCut) -> _Batches:
    """Find the batches of a part: those from the one that has its first offset to before the next part."""
    segment = cut.segment
    base, start = max(cut.first_offset, segment.base_offset), 0
    if base > segment.base_offset:
        found, start = _find_batch(segment, base)
        # Deleted records may precede the first offset in its batch. An older batch has its last offset in its header.
        base = min(base, max(found, segment.base_offset))
    end = segment.size if cut.next_offset is None else _find_batch(segment, cut.next_offset)[1]
    return _Batches(base, start, max(start, end))


def _find_batch(segment: RemoteSegment, offset: int) -> tuple[int, int]:
    """Find the first batch that has `offset` or later ones. Returns the offset in its header, and its position.

    Returns `offset` and the end of the log without one.
    """
    position = 0
    with suppress(StoredObjectError):  # without an index all batches before the offset are read
        for relative, found in _entries(segment, ".index", _OFFSET_ENTRY):
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
            return base_offset, position
        position += _OVERHEAD + size
    return offset, segment.size
