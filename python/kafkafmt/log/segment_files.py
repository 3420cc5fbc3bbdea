"""The segment files that an `EndTracker` reads: as they are now, or as they were listed.

| | `GrowingFiles` | `ListedFiles` |
|---|---|---|
| end of a file | the present end | the end when it was listed |
| batch with a wrong CRC | does not count: unfinished or damaged | counts: its reader reports it |
| incomplete batch at the end | for two seconds, may still be written | final |
| damage | is remembered and skipped | is raised, unless reads of the log skip it |
| transactions | are read when they are first needed | are read with the end, if they are wanted |
| open files | those of a `SegmentCache` | one, until the end is known |
"""

from __future__ import annotations

import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeAlias

from kafkafmt.log.checkpoints import LogStartOffsets
from kafkafmt.log.indexes import AbortedTransaction, transactions_from_bytes
from kafkafmt.log.isolation import LogTransactions, indexed_transactions
from kafkafmt.log.log_snapshot import LogSnapshot
from kafkafmt.log.open_segment import READ_BYTES, OpenSegment
from kafkafmt.log.overlaps import SegmentEnds
from kafkafmt.log.segment import SNAPSHOT_SUFFIX, TRANSACTION_INDEX_SUFFIX, Segment
from kafkafmt.storage import StoragePath, stamp_of

# Longer than a tick of any file system's clock of modification times.
_TICK_NS = 100_000_000


class FileState(NamedTuple):
    """The state of a file: a stamp that differs if it has changed, its size, and the time since its last change."""

    stamp: tuple[object, ...]
    size_in_bytes: int
    age_ns: int


class SegmentCache:
    """Keep segments of many logs open. Beyond `most`, the least recently used one is released.

    A released segment is closed when nothing refers to it any more. One thread uses the cache, or several that read
    remote logs: these do not use the read buffer that all segments share. Any thread may call `forget_replaced`.

    log_starts: the log start offsets of these logs. segment_ends: the end offsets of their closed segments.
    """

    def __init__(self, most: int = 512) -> None:
        self.log_starts = LogStartOffsets()
        self.segment_ends = SegmentEnds()
        self._most = most
        self._open: OrderedDict[StoragePath, OpenSegment] = OrderedDict()
        self._memory = bytearray(READ_BYTES)
        self._lock = threading.Lock()

    def get(self, segment: Segment, max_decompressed_bytes: int) -> OpenSegment:
        """Return a segment, opened if necessary. Raises FileNotFoundError if the file is gone."""
        with self._lock:
            found = self._open.get(segment.path)
        # After a roll `is_active` differs: the segment may have grown before, and its tail is now checked.
        if found is None or (found.segment is not segment and found.segment != segment):
            found = OpenSegment(segment, max_decompressed_bytes=max_decompressed_bytes, memory=self._memory)
        with self._lock:
            self._open[segment.path] = found
            self._open.move_to_end(segment.path)
            if len(self._open) > self._most:
                self._open.popitem(last=False)
        return found

    def forget(self, segment: Segment) -> None:
        """Remove a segment from the cache."""
        with self._lock:
            self._open.pop(segment.path, None)

    def forget_replaced(self, segments: Iterable[Segment] | None = None) -> None:
        """Release the segments whose path now leads to another file, or to none.

        A deleted file takes room on the disk while it is open. segments: None for all that are open.
        """
        with self._lock:
            paths = (
                self._open.keys() if segments is None else self._open.keys() & [one.path for one in segments]
            )
            opened = [(path, self._open[path]) for path in paths]
        # The file system is asked without the lock, as it may take long to answer.
        for path, segment in opened:
            if not segment.is_at_path():
                with self._lock:
                    if self._open.get(path) is segment:
                        del self._open[path]


class GrowingFiles:
    """The files as they are in their storage now.

    checks_crcs: a batch counts only if its CRC is valid. raises_damage: damage is raised, not skipped.
    """

    checks_crcs = True
    raises_damage = False

    def __init__(self, cache: SegmentCache, max_decompressed_bytes: int) -> None:
        self._cache, self._limit = cache, max_decompressed_bytes

    def open(self, segment: Segment) -> OpenSegment:
        """Open a segment. Raises FileNotFoundError if the file is gone."""
        return self._cache.get(segment, self._limit)

    def open_anew(self, segment: Segment) -> OpenSegment:
        """Open a segment again, without the remembered positions."""
        self._cache.forget(segment)
        return self.open(segment)

    def state(self, segment: Segment) -> FileState:
        found, now = segment.path.stat(), time.time_ns()
        return FileState(stamp_of(found), found.st_size, now - found.st_mtime_ns)

    def indexed_transactions(self, segments: Sequence[Segment]) -> None:
        """Return None: transactions are read later, when they are needed."""


class ListedFiles:
    """The files as they were listed. Bytes that were appended since are not read.

    follows_transactions: read transactions, too. They are read from all segments, unless a broker left a `.snapshot`
    for the last segment and `.txnindex` files.
    """

    checks_crcs = False

    def __init__(self, log: LogSnapshot, *, follows_transactions: bool) -> None:
        self.raises_damage = not log.skips_damage
        self._log = log
        self._follows_transactions = follows_transactions
        self._opened: OpenSegment | None = None

    def open(self, segment: Segment) -> OpenSegment:
        if self._opened is None or self._opened.segment is not segment:
            limit = self._log.max_decompressed_bytes
            self._opened = OpenSegment(segment, end=segment.size_in_bytes, max_decompressed_bytes=limit)
        return self._opened

    def open_anew(self, segment: Segment) -> OpenSegment:
        return self.open(segment)

    def state(self, segment: Segment) -> FileState:
        modified_ms = segment.modification_time_ms
        is_new = modified_ms is not None and time.time_ns() - modified_ms * 1_000_000 < _TICK_NS
        # Two writes within a tick of the clock leave the same time and, in a preallocated file, the same size.
        stamp = segment.path, segment.size_in_bytes, object() if is_new else modified_ms
        return FileState(stamp, segment.size_in_bytes, sys.maxsize)

    def indexed_transactions(self, segments: Sequence[Segment]) -> tuple[LogTransactions, int] | None:
        if not self._follows_transactions:
            return None
        snapshot = segments[-1].read_sidecar(SNAPSHOT_SUFFIX) or b""
        return indexed_transactions(segments, snapshot, self._aborted_transactions)

    def _aborted_transactions(self, segment: Segment) -> list[AbortedTransaction] | None:
        """Read `.txnindex` of a segment; empty if it has none; None if the file has changed since it was listed."""
        data = segment.read_sidecar(TRANSACTION_INDEX_SUFFIX)
        return None if data is None else transactions_from_bytes(data, segment.base_offset)


SegmentFiles: TypeAlias = GrowingFiles | ListedFiles
