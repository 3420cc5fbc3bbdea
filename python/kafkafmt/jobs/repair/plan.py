"""Decide what each segment of a log keeps, and what is lost.

1. Within a file, the batches that are kept ascend, and are as many as possible (`chains.py`). A batch that was left out
   is put back if its offsets follow those of a kept one and precede those of the next one: it was swapped.
2. Segments are in the order of their first offsets. A segment keeps its name if no batch in it has a lower offset, and
   no segment before it reaches that offset; else it gets the name of its first offset.
3. Offsets of several segments are kept from the first of them, as all readers do (`kafkafmt.log.overlaps`).
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from kafkafmt._util.files import irregular_in_words
from kafkafmt.jobs.repair.chains import CHAIN_DTYPE, heaviest_ascending
from kafkafmt.jobs.repair.copies import LeftChain, find_altered
from kafkafmt.jobs.repair.losses import Coverage, lost_range
from kafkafmt.jobs.repair.report import LossKind, LostRange
from kafkafmt.jobs.repair.scan import ScannedFile
from kafkafmt.log.batch_writer import MAX_INT32
from kafkafmt.log.segment import MAX_OFFSET, segment_file_name
from kafkafmt.records.range import RecordsRange
from kafkafmt.storage import StoragePath

if TYPE_CHECKING:
    from numpy.typing import NDArray

_NO_CHAINS = np.empty(0, CHAIN_DTYPE)


@dataclass
class KeptSegment:
    """A segment of the repaired log. ranges: what it keeps of a file, by offset, of `CHAIN_DTYPE`."""

    file: ScannedFile
    base_offset: int
    ranges: NDArray[np.void]

    @property
    def next_offset(self) -> int:
        """The offset after the last batch; the base offset if there is none."""
        return int(self.ranges["last_offset"][-1]) + 1 if len(self.ranges) else self.base_offset

    @property
    def is_whole(self) -> bool:
        """Whether the file has this name, and all of its bytes are kept in their order."""
        starts, ends = self.ranges["position"], self.ranges["end_position"]
        edges = np.concatenate(([0], ends)), np.concatenate((starts, [self.file.size_in_bytes]))
        return self.file.path.name == segment_file_name(self.base_offset) and bool(
            (edges[0] == edges[1]).all()
        )


@dataclass
class PartitionPlan:
    """The segments that a log keeps, by base offset; what is left out; and possible faults that stay."""

    segments: list[KeptSegment]
    lost: list[LostRange]
    notes: list[str] = field(default_factory=list)
    moved_batches: int = 0

    @property
    def end_offset(self) -> int:
        """The offset after the last batch; 0 without segments."""
        return self.segments[-1].next_offset if self.segments else 0


@dataclass
class _Sorted:
    """A file with the chains that it may keep, by offset, and the ones that it leaves out, with the reason."""

    file: ScannedFile
    kept: NDArray[np.void]
    dropped: list[tuple[LossKind, np.void]] = field(default_factory=list)
    moved: int = 0

    @property
    def first_offset(self) -> int:
        return int(self.kept["first_offset"][0])

    def drop(self, kind: LossKind, wanted: NDArray[np.bool_]) -> None:
        """Leave out the chains that are not wanted."""
        self.dropped += [(kind, chain) for chain in self.kept[~wanted]]
        self.kept = self.kept[wanted]


def plan_partition(files: Sequence[ScannedFile], irregular: Sequence[StoragePath] = ()) -> PartitionPlan:
    """Decide what the files of a partition keep. Raises OSError.

    irregular: folders, FIFOs and broken links with the name of a segment.
    """
    ordered = [_in_order(file, *_named_offsets(file, files)) for file in files]
    for one in ordered:
        _drop_below_name(one, ordered)
    with_batches = sorted((one for one in ordered if len(one.kept)), key=_by_offset)
    _drop_strays(with_batches)
    segments, reached = list[KeptSegment](), 0
    for one in with_batches:
        _drop_overlap(one, reached)
        if not len(one.kept):
            continue
        base_offset = _base_offset(one, reached)
        one.drop("out of order", one.kept["last_offset"] - base_offset <= MAX_INT32)
        if len(one.kept):
            segments.append(KeptSegment(one.file, base_offset, one.kept))
            reached = segments[-1].next_offset
    segments += _empty_end(files, segments, reached)
    coverage = Coverage(segment.ranges for segment in segments)
    altered = _altered(ordered, coverage, segments)
    lost = [lost for one in ordered for lost in _lost_of(one, coverage, segments, altered)]
    lost += (_lost_without_file(path, coverage, segments) for path in irregular)
    return PartitionPlan(segments, lost, list(_gaps(segments)), sum(one.moved for one in ordered))


def _altered(
    ordered: Sequence[_Sorted], coverage: Coverage, segments: Iterable[KeptSegment]
) -> set[tuple[StoragePath, int]]:
    """Return the paths and positions of chains that are left out, and whose offsets, but not records, are kept.

    If a compaction was killed, the segment that it has written overlaps those that it has read. What it removed is not
    lost.
    """
    files, doubtful = [one.file for one in ordered], list[LeftChain]()
    for one in ordered:
        named_first, named_stop = _named_offsets(one.file, files)
        for kind, chain in one.dropped:
            first, last = int(chain["first_offset"]), int(chain["last_offset"])
            is_named = one.file.base_offset is not None and named_first <= first and last < named_stop
            if coverage.missing(first, last) is None:
                doubtful.append(LeftChain(one.file, chain, kind == "overlap" and is_named))
    altered = find_altered(doubtful, [(one.file, one.ranges) for one in segments])
    return {
        (left.file.path, int(left.chain["position"]))
        for left, is_altered in zip(doubtful, altered, strict=True)
        if is_altered
    }


def _by_offset(one: _Sorted) -> tuple[int, int]:
    base = one.file.base_offset
    return one.first_offset, one.first_offset if base is None else base


def _named_offsets(file: ScannedFile, files: Sequence[ScannedFile]) -> tuple[int, int]:
    """Return the offsets that a file has by its name, and by that of the next segment: the first, and the stop."""
    bases = sorted(one.base_offset for one in files if one.base_offset is not None)
    first = file.base_offset or 0
    return first, next((base for base in bases if base > first), MAX_OFFSET)


def _in_order(file: ScannedFile, named_first: int, named_stop: int) -> _Sorted:
    chains = file.chains
    if (chains["first_offset"][1:] > chains["last_offset"][:-1]).all():
        return _Sorted(file, chains)
    batches = _batches_of(file, chains)
    is_named = (batches["first_offset"] >= named_first) & (batches["last_offset"] < named_stop)
    # If as many batches contradict as many others, the names of the segments decide.
    kept = heaviest_ascending(batches["first_offset"], batches["last_offset"], 2 + is_named.astype("i8"))
    put_back = _put_back(batches, kept, named_first)
    found = batches[kept | put_back]
    found = found[found["first_offset"].argsort(kind="stable")]
    left = [("out of order", batch) for batch in batches[~(kept | put_back)]]
    return _Sorted(file, found, left, int(put_back.sum()))  # type: ignore[arg-type]


def _put_back(batches: NDArray[np.void], kept: NDArray[np.bool_], named_first: int) -> NDArray[np.bool_]:
    """Return which of the other batches have free offsets, and have them by more than their base offset.

    They directly follow, or precede, those of a kept batch; or the place in the file has no room for other offsets.
    """
    found = np.zeros(len(batches), np.bool_)
    others = (~kept).nonzero()[0]
    covered = Coverage([batches[kept]])
    for number in others[batches["first_offset"][others].argsort(kind="stable")].tolist():
        first, last = int(batches["first_offset"][number]), int(batches["last_offset"][number])
        is_next = first == named_first or covered.has(first - 1) or covered.has(last + 1)
        is_moved = _room(batches, kept, number) < last - first + 1
        if (is_next or is_moved) and covered.is_free(first, last):
            covered.add(first, last)
            found[number] = True
    return found


def _room(batches: NDArray[np.void], kept: NDArray[np.bool_], number: int) -> int:
    """Return how many offsets are free between the kept batches before and after a batch in the file."""
    before, after = kept[:number].nonzero()[0], kept[number + 1 :].nonzero()[0]
    if not (len(before) and len(after)):
        return MAX_OFFSET
    first = int(batches["last_offset"][before[-1]]) + 1
    return int(batches["first_offset"][number + 1 + after[0]]) - first


def _batches_of(file: ScannedFile, chains: NDArray[np.void]) -> NDArray[np.void]:
    """Return a chain for each batch of `chains`."""
    parts = [_NO_CHAINS]
    with file.open() as records:
        for chain in chains:
            part = RecordsRange(records, int(chain["position"]), int(chain["end_position"]))
            before = int(chain["first_offset"]) - 1
            for run in part.whole_runs(reuse_memory=True):
                rows = run.index
                found = np.empty(len(rows), CHAIN_DTYPE)
                found["position"], found["end_position"] = rows["position"], rows["position"] + rows["size"]
                found["last_offset"] = rows["last_offset"]
                found["first_offset"][0] = before + 1  # batches of a chain have consecutive offsets
                found["first_offset"][1:] = rows["last_offset"][:-1] + 1
                found["batches"], found["records"] = 1, np.maximum(rows["count"], 0)
                before = int(rows["last_offset"][-1])
                parts.append(found)
    return np.concatenate(parts)


def _drop_below_name(one: _Sorted, files: Sequence[_Sorted]) -> None:
    """Leave out batches below the offset in the name that contradict the segments before, if as many batches do not.

    If there is no such contradiction, or more batches are below it, the name is wrong.
    """
    base = one.file.base_offset
    if base is None:
        return
    earlier = (other for other in files if (other.file.base_offset or 0) < base and len(other.kept))
    reached = max((int(other.kept["last_offset"][-1]) for other in earlier), default=-1)
    agree = (one.kept["first_offset"] >= base) | (one.kept["first_offset"] > reached)
    weights = one.kept["batches"]
    if not agree.all() and weights[agree].sum() >= weights[~agree].sum():
        one.drop("out of order", agree)


def _drop_strays(ordered: Sequence[_Sorted]) -> None:
    """Leave out the last batch of a segment if it jumps over the begin of another segment.

    Its base offset is changed: with it, the batches of that segment would be left out.
    """
    for number, one in enumerate(ordered[:-1]):
        first_following = min(later.first_offset for later in ordered[number + 1 :])
        while len(one.kept) > 1:
            last, before = one.kept[-1], one.kept[-2]
            is_single = last["batches"] == 1 and last["first_offset"] > before["last_offset"] + 1
            if not is_single or last["last_offset"] < first_following:
                break
            one.drop("out of order", np.arange(len(one.kept)) < len(one.kept) - 1)


def _drop_overlap(one: _Sorted, reached: int) -> None:
    """Leave out what is below the end of the earlier segments."""
    if not reached or one.first_offset >= reached:
        return
    straddling = (one.kept["first_offset"] < reached) & (one.kept["last_offset"] >= reached)
    if straddling.any():
        parts = [_batches_of(one.file, one.kept[straddling]), one.kept[~straddling]]
        one.kept = np.concatenate(parts)
        one.kept = one.kept[one.kept["first_offset"].argsort(kind="stable")]
    one.drop("overlap", one.kept["first_offset"] >= reached)


def _base_offset(one: _Sorted, reached: int) -> int:
    base, first, last = one.file.base_offset, one.first_offset, int(one.kept["last_offset"][-1])
    is_right = base is not None and reached <= base <= first and last - base <= MAX_INT32
    return base if base is not None and is_right else first


def _empty_end(
    files: Iterable[ScannedFile], segments: Sequence[KeptSegment], reached: int
) -> Iterator[KeptSegment]:
    """Yield the last segment without batches, which has the end of the log in its name, if there is one.

    If no file keeps a batch, it is the last one, whatever it had: a log has a segment.
    """
    empty = [
        file
        for file in files
        if file.is_active and file.base_offset is not None and not (segments and len(file.chains))
    ]
    for file in empty:
        base = file.base_offset
        assert base is not None
        if not segments or (base >= reached and segments[-1].base_offset < base <= reached + MAX_INT32):
            yield KeptSegment(file, base, _NO_CHAINS)


def _lost_of(
    one: _Sorted,
    coverage: Coverage,
    segments: Sequence[KeptSegment],
    altered: Container[tuple[StoragePath, int]],
) -> Iterator[LostRange]:
    """Yield what a file loses, by position."""
    file = one.file
    kept = one.kept[one.kept["position"].argsort(kind="stable")]
    ends = kept["end_position"]
    before_file = _end_before(file, kept, segments)
    after_file = _first_after(file, kept, segments)
    is_unnamed = file.base_offset is None or (len(kept) > 0 and file.base_offset > kept["first_offset"].min())
    found = []
    first: int | None
    for damage in file.damage:
        number = int(ends.searchsorted(damage.position, "right"))
        first = int(kept["last_offset"][number - 1]) + 1 if number else before_file
        stop = int(kept["first_offset"][number]) if number < len(kept) else after_file
        if not number and is_unnamed and before_file == 0:
            first = None
        found.append(lost_range(file, damage, coverage, first, stop))
    for kind, chain in one.dropped:
        number = int(ends.searchsorted(int(chain["position"]), "right"))
        begin = int(kept["last_offset"][number - 1]) + 1 if number else before_file
        stop = int(kept["first_offset"][number]) if number < len(kept) else after_file
        is_altered = (file.path, int(chain["position"])) in altered
        found.append(_dropped_range(file, kind, chain, coverage, (begin, stop), is_altered=is_altered))
    yield from sorted(found, key=lambda lost: lost.position)


def _lost_without_file(path: StoragePath, coverage: Coverage, segments: Sequence[KeptSegment]) -> LostRange:
    """Return what is lost with a segment that is no regular file: at most the offsets up to the next segment."""
    first = int(path.name[:20])
    following = min((one.base_offset for one in segments if one.base_offset > first), default=None)
    missing = None if following is None else coverage.missing(first, following - 1)
    return LostRange(
        kind="no file",
        path=str(path),
        position=0,
        end_position=0,
        first_offset=None if missing is None else missing[0],
        last_offset=None if missing is None else missing[1],
        is_lost=True,
        records=None,
        keys=[],
        message=irregular_in_words(str(path)),
    )


def _dropped_range(
    file: ScannedFile,
    kind: LossKind,
    chain: np.void,
    coverage: Coverage,
    gap: tuple[int, int | None],
    *,
    is_altered: bool,
) -> LostRange:
    """Return what is lost with a chain that is left out.

    gap: the offsets that are missing at its place in the file. is_altered: its offsets are kept, but not its records.
    """
    first, last = int(chain["first_offset"]), int(chain["last_offset"])
    missing = coverage.missing(first, last)
    is_lost = missing is not None or is_altered
    if is_lost and gap[1] is not None and gap[0] < gap[1]:
        missing = coverage.missing(gap[0], gap[1] - 1) or missing
    return LostRange(
        kind=kind if is_lost else "duplicate",
        path=str(file.path),
        position=int(chain["position"]),
        end_position=int(chain["end_position"]),
        first_offset=None if missing is None else missing[0],
        last_offset=None if missing is None else missing[1],
        is_lost=is_lost,
        records=int(chain["records"]),
        keys=[],
        message=f"offsets {first} to {last} contradict those of other batches",
    )


def _end_before(file: ScannedFile, kept: NDArray[np.void], segments: Sequence[KeptSegment]) -> int:
    """Return the offset after the segments before a file."""
    base = int(kept["first_offset"].min()) if len(kept) else file.base_offset or 0
    ends = [one.next_offset for one in segments if one.file is not file and one.next_offset <= base]
    return max([*ends, 0 if file.base_offset is None or file.base_offset > base else file.base_offset])


def _first_after(file: ScannedFile, kept: NDArray[np.void], segments: Sequence[KeptSegment]) -> int | None:
    """Return the lowest offset that other segments keep after those of a file; None if there is none."""
    end = int(kept["last_offset"].max()) + 1 if len(kept) else file.base_offset or 0
    later = (
        int(one.ranges["first_offset"][0]) if len(one.ranges) else one.base_offset
        for one in segments
        if one.file is not file
    )
    return min((first for first in later if first >= end), default=None)


def _gaps(segments: Sequence[KeptSegment]) -> Iterator[str]:
    for before, after in pairwise(segments):
        if before.next_offset < after.base_offset:
            last = after.base_offset - 1
            yield f"offsets {before.next_offset} to {last} are in no segment: retention and compaction do this, too"
