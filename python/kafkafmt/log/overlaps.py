"""Overlapping segments of one log: from which of them each offset is read, so that no reader gets it twice.

A log that was converted before a compaction merged its segments, or a compaction that was killed, may leave

    00000000000000000000.log    offsets    0 to 2015
    00000000000000000697.log    offsets  697 to 1359
    00000000000000001360.log    offsets 1360 to 2015

The rule for all readers: an offset belongs to the first segment, in the order of base offsets, that ends after it. So
each segment is read from the highest end of the earlier segments on. No offset above that end is lost, and a reader
needs to remember only the highest offset it has read.

A segment that ends no later than the earlier ones is not read. The ends of the others ascend, so the last one has the
end of the log.
"""

from __future__ import annotations

import contextlib
import logging
from bisect import bisect_right
from collections.abc import Container, Hashable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from kafkafmt.errors import KafkaFormatError
from kafkafmt.log.checkpoints import LogStartOffsets
from kafkafmt.log.indexes import OFFSET_INDEX_DTYPE, OffsetIndex, TimeIndex
from kafkafmt.log.listing import list_segments
from kafkafmt.log.segment import OFFSET_INDEX_SUFFIX, Segment, is_segment_file_name, segment_file_name
from kafkafmt.log.segment_search import MAX_RELATIVE_OFFSET, SegmentIndexes
from kafkafmt.records.runs import first_offset, slice_run
from kafkafmt.storage import StoragePath, stamp_of, storage_of

if TYPE_CHECKING:
    from _kafkafmt.batches.scan import BatchRun

_LOG = logging.getLogger(__name__)


class SegmentOffsets(NamedTuple):
    """A segment's base offset, and the offset after its last batch; the base offset if it has no batch."""

    base_offset: int
    next_offset: int


class Overlap(NamedTuple):
    """Offsets of a segment that earlier segments have, too.

    base_offset: that of the segment. first_offset, last_offset: the offsets that readers leave out of it.
    """

    base_offset: int
    first_offset: int
    last_offset: int

    def __str__(self) -> str:
        return f"offsets {self.first_offset} to {self.last_offset} are in a segment before it, too"


def first_offsets(segments: Iterable[SegmentOffsets]) -> list[int]:
    """Return the lowest offset that is read from each segment of a log. segments: by base offset.

    >>> first_offsets([SegmentOffsets(0, 2016), SegmentOffsets(697, 1360), SegmentOffsets(2016, 2500)])
    [0, 2016, 2016]
    """
    found, reached = [], 0
    for segment in segments:
        found.append(max(segment.base_offset, reached))
        reached = max(reached, segment.next_offset)
    return found


def find_overlaps(segments: Iterable[SegmentOffsets]) -> list[Overlap]:
    """Return the overlaps in a log; normally there are none. segments: by base offset.

    >>> find_overlaps([SegmentOffsets(0, 2016), SegmentOffsets(697, 1360), SegmentOffsets(2016, 2500)])
    [Overlap(base_offset=697, first_offset=697, last_offset=1359)]
    """
    known = list(segments)
    return [
        Overlap(segment.base_offset, segment.base_offset, min(first, segment.next_offset) - 1)
        for segment, first in zip(known, first_offsets(known), strict=True)
        if segment.base_offset < min(first, segment.next_offset)
    ]


class ReadSegments(NamedTuple):
    """The segments of a log that are read, by base offset; the lowest offset read from each; and the overlaps."""

    segments: list[Segment]
    first_offsets: list[int]
    overlaps: list[Overlap]

    def number_of(self, offset: int) -> int:
        """Return the number of the segment that an offset belongs to; 0 for an offset below all segments."""
        return max(bisect_right(self.first_offsets, offset) - 1, 0)

    def from_offset(self, offset: int | None) -> list[Segment]:
        """Return the segments from the one that an offset belongs to on; all of them for None."""
        return self.segments if offset is None else self.segments[self.number_of(offset) :]

    def after(self, segment: Segment) -> Segment | None:
        """Return the segment after one that may have been deleted since; None for the last one."""
        return next((one for one in self.segments if one.base_offset > segment.base_offset), None)

    def spans(self, start_offset: int = 0) -> Iterator[tuple[Segment, int, int | None]]:
        """Iterate over the segments with offsets from `start_offset` on, with the lowest of them to read from each.

        The third value is the lowest offset that is read from the next segment; None for the last one.
        """
        next_offsets = [*self.first_offsets[1:], None]  # one too many without segments
        for segment, first, stop in zip(self.segments, self.first_offsets, next_offsets, strict=False):
            if stop is None or stop > start_offset:
                yield segment, max(first, start_offset), stop


class LowestOffsets:
    """Return the lowest offset to read from each file of a log, while files are read in the order of base offsets.

    Records below the log start offset are deleted, unless `from_segment_start` is set. Offsets of earlier segments are
    not read again: the rule of this module, without reading the ends of segments before.
    """

    def __init__(self, *, from_segment_start: bool = False) -> None:
        self._log_starts = None if from_segment_start else LogStartOffsets()
        self._reached: dict[StoragePath, tuple[int, int]] = {}
        self._stops: dict[StoragePath, int | None] = {}

    def start_of(self, path: StoragePath) -> int:
        """Return the log start offset of the partition of a segment; 0 for a file that is not a segment."""
        if self._log_starts is None or not is_segment_file_name(path.name):
            return 0
        return self._log_starts.of(path.absolute().parent)

    def of(self, path: StoragePath) -> int:
        """Return the lowest offset to read from a file.

        Raises CheckpointError if `log-start-offset-checkpoint` is malformed.
        """
        return max(self.start_of(path), self.reached_before(path))

    def reached_before(self, path: StoragePath) -> int:
        """Return the offset after the highest one of the earlier segments; 0 if none was read."""
        if not is_segment_file_name(path.name):
            return 0
        base_offset, reached = self._reached.get(path.parent, (-1, 0))
        return reached if base_offset < int(path.stem) else 0

    def stop_of(self, path: StoragePath, segment: Segment | None, next_offset: int) -> int | None:
        """Return the offset where the next segment begins, if it contradicts the one after the offsets of a file.

        It does not if segments overlap. segment: the file as it was listed; None for one outside a log.
        """
        if segment is None or segment.next_base_offset is None or next_offset <= segment.next_base_offset:
            return None
        if path not in self._stops:
            self._stops[path] = None
            with contextlib.suppress(OSError, ValueError):
                regular = [one for one in list_segments(path.parent) if one.is_regular]
                spans = SegmentEnds().read_segments(regular).spans()
                self._stops[path] = next((stop for one, _, stop in spans if one.path == path), None)
        stop = self._stops[path]
        return stop if stop is not None and stop < next_offset else None

    def add(self, path: StoragePath, segment: Segment | None, next_offset: int) -> None:
        """Add a file that was read, and its segment as it was listed. next_offset: the one after its highest offset."""
        if is_segment_file_name(path.name):
            stop = self.stop_of(path, segment, next_offset)
            reached = max(self.reached_before(path), next_offset if stop is None else stop)
            self._reached[path.parent] = int(path.stem), reached


class SegmentEnds:
    """The end offsets of closed segments of logs, by their folders. Threads may share this object.

    The end of a segment is read once, and again if its file, or its listing, has changed. The end of the last segment,
    which may grow, is read only if earlier segments overlap it.

    warns: log a warning, once, for each overlap that is there.
    """

    def __init__(self, *, warns: bool = False) -> None:
        self._known: dict[StoragePath, dict[StoragePath, tuple[Hashable, int | None]]] = {}
        self._sound: dict[StoragePath, dict[StoragePath, Hashable]] = {}  # segments that overlap later ones
        self._warns = warns
        self._logged: dict[StoragePath, set[Overlap]] = {}

    def read_segments(self, segments: Sequence[Segment]) -> ReadSegments:
        """Select the segments of a log to read. Each segment costs a call to the file system.

        segments: all segments of the log. If the end of a segment cannot be found, as it is damaged or gone, the
        segment is selected, and its offsets overlap no other.
        """
        ends = self._find(segments)
        offsets = [
            SegmentOffsets(one.base_offset, one.base_offset if end is None else end)
            for one, end in zip(segments, ends, strict=True)
        ]
        firsts, overlaps = first_offsets(offsets), find_overlaps(offsets)
        if self._warns and segments:
            self._warn(segments[0].path.parent, overlaps)
        read = [
            (segment, first)
            for segment, first, end in zip(segments, firsts, ends, strict=True)
            if end is None or first == segment.base_offset or end > first
        ]
        return ReadSegments([segment for segment, _ in read], [first for _, first in read], overlaps)

    def _find(self, segments: Sequence[Segment]) -> list[int | None]:
        """Return the end offset of each segment of a log; None if it is unknown or was not read."""
        if not segments:
            return []
        *closed, last = segments
        folder = last.path.parent
        before, known = self._known.get(folder, {}), {}
        for segment in closed:
            stamp = _stamp(segment)
            if stamp is not None:
                found = before.get(segment.path)
                if found is None or found[0] != stamp:
                    found = _end(segment, stamp)
                known[segment.path] = found
        self._known[folder] = known
        ends = [known[one.path][1] if one.path in known else None for one in closed]
        reached = max((end for end in ends if end is not None), default=0)
        # None for damage at the end of the last segment, which is so read and reported.
        end = _intact_end(last, None)[1] if reached > last.base_offset else None
        self._forget_astray(segments, ends, end, known)
        return [*ends, end]

    def _forget_astray(
        self,
        segments: Sequence[Segment],
        ends: list[int | None],
        log_end: int | None,
        known: dict[StoragePath, tuple[Hashable, int | None]],
    ) -> None:
        """Set the ends of segments that `_ends_astray` to None. log_end: that of the last one, if it was read.

        known: the ends to remember. Another thread may have replaced those of the folder meanwhile.
        """
        folder = segments[-1].path.parent
        before, sound = self._sound.get(folder, {}), dict[StoragePath, Hashable]()
        for number, end in enumerate(ends):
            segment = segments[number]
            if end is None or end <= segments[number + 1].base_offset:
                continue
            later = [one.base_offset for one in segments[number + 1 :]]
            is_beyond_log = log_end is not None and end > log_end
            state = known[segment.path], tuple(later), is_beyond_log
            is_astray: bool | None = False
            if before.get(segment.path) != state:
                is_astray = _ends_astray(segment, end, later, is_beyond_log=is_beyond_log)
            if is_astray:
                ends[number] = None
                known[segment.path] = known[segment.path][0], None
            elif is_astray is not None:
                sound[segment.path] = state
        self._sound[folder] = sound

    def _warn(self, folder: StoragePath, overlaps: Sequence[Overlap]) -> None:
        for overlap in overlaps:
            if overlap not in self._logged.get(folder, ()):
                _LOG.warning("%s: %s: left out", folder / segment_file_name(overlap.base_offset), overlap)
        if overlaps or folder in self._logged:
            self._logged[folder] = set(overlaps)

    def keep(self, folders: Container[StoragePath]) -> None:
        """Forget the segments of all logs that are not in `folders`, which are paths as `parent` of a segment's."""
        for known in (self._known, self._sound, self._logged):
            for folder in known.copy():  # other threads may add logs
                if folder not in folders:
                    known.pop(folder, None)


def _stamp(segment: Segment) -> Hashable | None:
    """Return a value that differs if the segment has changed; None if it is gone."""
    if segment.listed_size_in_bytes is not None:
        return segment
    try:
        return stamp_of(segment.path.stat())
    except OSError:
        return None


def _end(segment: Segment, stamp: Hashable) -> tuple[Hashable, int | None]:
    """Find the offset after a segment's last batch, None if it cannot be found; with the stamp for which that holds."""
    if segment.listed_size_in_bytes is None:
        return _intact_end(segment, stamp)
    return stamp, find_readable_end(segment)


def _intact_end(segment: Segment, stamp: Hashable) -> tuple[Hashable, int | None]:
    try:
        return stamp, segment.find_next_offset()
    except KafkaFormatError:
        return stamp, None
    except OSError:  # the next read may succeed
        return None, None


def _ends_astray(segment: Segment, end: int, later: Sequence[int], *, is_beyond_log: bool) -> bool | None:
    """Whether the last batch of a segment, alone of it, has offsets of later segments, and cannot belong there.

    No CRC covers the base offset of a batch. If that of the last one is damaged, or its CRC does not match, the later
    segments must not seem to be in this one. In a valid batch, an offset that follows that of the batch before is not
    damaged. A merged segment ends where one of those ends that it replaces, and these are never the last one.

    end: the end offset of the segment.
    later: the base offsets of the later segments.
    is_beyond_log: the last segment ends before `end`.

    Returns None if the segment cannot be read now.
    """
    try:
        with segment.open() as records:
            start = segment.read_indexes().search_start_of_last(records)
            before, first, is_valid = _last_two(records.runs(start, reuse_memory=True))
    except KafkaFormatError:
        return False
    except OSError:
        return None
    if is_valid and first == (segment.base_offset if before is None else before + 1):
        return False
    is_beyond = is_beyond_log and first >= later[-1]
    is_astray = not is_valid or is_beyond or any(first < base < end for base in later)
    return is_astray and (before is None or before < later[0])


def _last_two(runs: Iterable[BatchRun]) -> tuple[int | None, int, bool]:
    """Return the last offset of the batch before the last one, None without one, and the first offset of the last.

    The third value is whether the CRC of the last batch matches.
    """
    before: int | None = None
    last = reached = -1
    is_valid = True
    for run in runs:
        number, lasts = len(run) - 1, run.index["last_offset"]
        if number:
            before = int(lasts[-2])
        elif reached >= 0:
            before = reached
        last, reached = first_offset(run, number), int(lasts[-1])
        is_valid = bool(slice_run(run, number, number + 1).valid().all())
    return before, last, is_valid


def find_readable_end(segment: Segment) -> int:
    """Find the offset after the last readable batch of a segment. Damage is skipped."""
    with contextlib.suppress(KafkaFormatError), segment.open() as records:
        return _read_end_index(segment).find_next_offset(records)
    found, position = segment.base_offset, 0
    most = segment.base_offset + MAX_RELATIVE_OFFSET
    while position < segment.size_in_bytes:  # damage is reported when records are read
        with segment.open(position) as records:
            try:
                for run in records.runs(reuse_memory=True):
                    lasts = run.index["last_offset"]
                    found = max(found, int(lasts[lasts <= most].max(initial=-1)) + 1)
                break
            except KafkaFormatError as error:
                position = segment.size_in_bytes if error.position is None else records.position_after(error)
    return found


def _read_end_index(segment: Segment) -> SegmentIndexes:
    """Read the last entry of the offset index, to find the end of a segment; the whole index if it ends with zeros."""
    entry, base_offset = b"", segment.base_offset
    entry_size = OFFSET_INDEX_DTYPE.itemsize
    size = (segment.sidecar_sizes or {}).get(OFFSET_INDEX_SUFFIX, 0) // entry_size * entry_size
    if size:
        path = segment.path.with_suffix(OFFSET_INDEX_SUFFIX)
        with contextlib.suppress(FileNotFoundError), storage_of(path).open(path) as file:
            file.seek(size - entry_size)
            entry = bytes(file.read(entry_size))
    if entry and not any(entry):
        return segment.read_indexes()
    index, times = OffsetIndex.from_bytes(entry, base_offset), TimeIndex.from_bytes(b"", base_offset)
    return SegmentIndexes(base_offset, index, times)
