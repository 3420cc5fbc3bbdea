"""The segments of tiered storage that make up the log: copies of the same offsets by several leaders are cut.

A leader copies the segments of its own log. A new leader may copy the same offsets again, with other boundaries, and a
leader that was replaced may have copied records that were truncated later. So each leader epoch of a segment is looked
up in the lineage: the leader epochs of the log, and the first offset of each (KIP-405, "Leader Epoch Lineage"). Records
of an epoch that is not in the lineage, or after the epoch's end in it, are not part of the log.

The lineage is the leader-epoch checkpoint that was copied with the newest segment. A leader that has copied nothing yet
is not known.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from kafkafmt.records.lost import StoredObjectError
from kafkafmt.storage.tiered.segments import RemoteSegment, SegmentCut

CHECKPOINT_SUFFIX = ".leader-epoch-checkpoint"
_UNBOUNDED = 2**63
_MAX_CHECKPOINT_BYTES = 64 << 20

# Leader epochs with the first offset of each, ascending.
LeaderEpochs = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class _Part:
    """Offsets of a segment that are part of the log, from `first` to before `after`."""

    segment: RemoteSegment
    first: int
    after: int


def cuts(segments: Sequence[RemoteSegment]) -> list[SegmentCut]:
    """Return the parts of segments that make up the log, ascending. No two have an offset in common.

    Raises StoredObjectError for a leader-epoch checkpoint that cannot be read.
    """
    lineage = current_lineage(segments)
    ends = _ends(segments)
    parts = [part for one in segments for part in _parts(one, ends[one.base_offset], lineage)]
    chosen = _fewest(parts)
    found: list[SegmentCut] = []
    for place, part in enumerate(chosen):
        following = chosen[place + 1].first if place + 1 < len(chosen) else _UNBOUNDED
        after = min(part.after, following)
        at_end = after >= _after(part.segment, ends[part.segment.base_offset])
        found.append(SegmentCut(part.segment, part.first, None if at_end else after))
    return found


def current_lineage(segments: Sequence[RemoteSegment]) -> LeaderEpochs:
    """Return the leader epochs of the log: those of the checkpoint of the newest segment.

    Without that checkpoint, they are the epochs of the newest segment, and older ones from older segments: a stale
    leader is then not found if no newer segment has its offsets. Segments without leader epochs have no lineage.
    Raises StoredObjectError for a checkpoint that cannot be read.
    """
    with_epochs = [one for one in segments if one.leader_epochs]
    newest_first = sorted(with_epochs, key=_age, reverse=True)
    if not newest_first:
        return ()
    checkpoint = newest_first[0].files.get(CHECKPOINT_SUFFIX)
    if checkpoint is not None and checkpoint.size:
        if checkpoint.size > _MAX_CHECKPOINT_BYTES:
            raise _bad_checkpoint(newest_first[0], f"found {checkpoint.size} bytes")
        try:
            epochs = read_checkpoint(bytes(checkpoint.read_at(0, checkpoint.size)))
        except ValueError as error:
            raise _bad_checkpoint(newest_first[0], str(error)) from None
        if epochs:
            return epochs
    lineage: list[tuple[int, int]] = []
    for one in newest_first:
        for epoch, offset in reversed(one.leader_epochs):
            if not lineage or (epoch < lineage[0][0] and offset < lineage[0][1]):
                lineage.insert(0, (epoch, offset))
            elif epoch == lineage[0][0] and offset < lineage[0][1]:
                lineage[0] = epoch, offset  # an earlier segment of the same epoch
    return tuple(lineage)


def read_checkpoint(data: bytes) -> LeaderEpochs:
    """Decode a leader-epoch checkpoint: a line of the version 0, of the count, then of an epoch and its first offset.

    Raises ValueError, which names the line.

    >>> read_checkpoint(b"0\\n2\\n0 0\\n3 17\\n")
    ((0, 0), (3, 17))
    """
    lines = data.decode("ascii", "replace").split("\n")
    if lines[0].strip() != "0":
        raise ValueError(f"line 1: expected the version 0, found {lines[0][:40]!r}")
    entries = [line for line in lines[2:] if line.strip()]
    if len(lines) < 2 or lines[1].strip() != str(len(entries)):
        raise ValueError(f"line 2: expected the number of lines that follow, {len(entries)}")
    epochs: list[tuple[int, int]] = []
    for number, line in enumerate(entries, 3):
        words = line.split()
        if len(words) != 2 or not all(word.isdecimal() and len(word) < 20 for word in words):
            raise ValueError(f"line {number}: expected an epoch and an offset, found {line[:40]!r}")
        found = int(words[0]), int(words[1])
        if epochs and not (epochs[-1][0] < found[0] and epochs[-1][1] <= found[1]):
            raise ValueError(f"line {number}: expected epochs and offsets that ascend, found {line[:40]!r}")
        epochs.append(found)
    return tuple(epochs)


def _bad_checkpoint(segment: RemoteSegment, message: str) -> StoredObjectError:
    name = f"{segment.topic}-{segment.partition}: segment {segment.base_offset}-{segment.segment_id}"
    return StoredObjectError(name, f"the leader-epoch checkpoint cannot be read: {message}")


def _age(segment: RemoteSegment) -> tuple[int, int, int, str]:
    last_offset = max(segment.end_offset, segment.base_offset)
    return segment.leader_epochs[-1][0], last_offset, segment.event_timestamp_ms, segment.segment_id


def _ends(segments: Sequence[RemoteSegment]) -> dict[int, int]:
    """Return the offset at which a segment ends, by base offset, if the store does not tell: that of the next one."""
    offsets = sorted({one.base_offset for one in segments})
    return dict(zip(offsets, [*offsets[1:], _UNBOUNDED], strict=True))


def _after(segment: RemoteSegment, end: int) -> int:
    return end if segment.end_offset < 0 else segment.end_offset + 1


def _parts(segment: RemoteSegment, end: int, lineage: LeaderEpochs) -> list[_Part]:
    """Return the parts of a segment that are in the lineage. Epochs whose offsets adjoin are one part."""
    after = _after(segment, end)
    if not segment.leader_epochs:
        return [_Part(segment, segment.base_offset, after)] if after > segment.base_offset else []
    begins = dict(lineage)
    stops = {epoch: stop for (epoch, _), (_, stop) in itertools.pairwise(lineage)}
    found: list[_Part] = []
    for place, (epoch, offset) in enumerate(segment.leader_epochs):
        if epoch not in begins:
            continue
        is_last = place + 1 == len(segment.leader_epochs)
        stop = after if is_last else min(segment.leader_epochs[place + 1][1], after)
        first = max(offset, begins[epoch], segment.base_offset)
        stop = min(stop, stops.get(epoch, _UNBOUNDED))
        if first >= stop:
            continue
        if found and found[-1].after == first:
            first = found.pop().first
        found.append(_Part(segment, first, stop))
    return found


def _fewest(parts: list[_Part]) -> list[_Part]:
    """Return the fewest parts that have every offset which some part has, ascending.

    Of several parts that have an offset, the one with the highest last offset is chosen. So a part overlaps the next
    one only. All have the same records, as they are in the lineage.
    """
    ascending = sorted(parts, key=lambda part: part.first)
    chosen: list[_Part] = []
    place, position = 0, -1
    best: _Part | None = None
    while place < len(ascending) or best is not None:
        while place < len(ascending) and ascending[place].first <= position:
            if best is None or ascending[place].after > best.after:
                best = ascending[place]
            place += 1
        if best is not None and best.after > position:
            chosen.append(best)
            position, best = best.after, None
            continue
        best = None
        if place < len(ascending):
            position = ascending[place].first
    return chosen
