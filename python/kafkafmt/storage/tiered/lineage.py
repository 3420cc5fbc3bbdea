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

from kafkafmt.log.checkpoints import CheckpointError, parse_leader_epochs
from kafkafmt.records.lost import StoredObjectError
from kafkafmt.storage.tiered.segments import RemoteSegment, SegmentCut
from kafkafmt.storage.views import ViewFile

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


def cuts(segments: Sequence[RemoteSegment], lineage: LeaderEpochs) -> list[SegmentCut]:
    """Return the parts of segments that make up the log of `lineage`, ascending. No two have an offset in common."""
    ends = _ends(segments)
    parts = [part for one in segments for part in _parts(one, ends[one.base_offset], lineage)]
    found: list[SegmentCut] = []
    for part in _begun_last(parts):
        at_end = part.after >= _after(part.segment, ends[part.segment.base_offset])
        found.append(SegmentCut(part.segment, part.first, None if at_end else part.after))
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
        newest = newest_first[0]
        name = f"{newest.topic}-{newest.partition}: segment {newest.base_offset}-{newest.segment_id}"
        epochs = read_checkpoint(checkpoint, name)
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


def read_checkpoint(file: ViewFile, name: object) -> LeaderEpochs:
    """Read the leader-epoch checkpoint of a segment. Raises StoredObjectError if it cannot be read.

    name: its path, or that of the segment, for errors.
    """
    try:
        if file.size > _MAX_CHECKPOINT_BYTES:
            raise CheckpointError(f"found {file.size} bytes")
        return tuple(parse_leader_epochs(bytes(file.read_at(0, file.size)), ""))
    except CheckpointError as error:
        raise StoredObjectError(name, f"the leader-epoch checkpoint cannot be read: {error}") from None


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


def _begun_last(parts: list[_Part]) -> list[_Part]:
    """Return parts that have every offset which some part has, each offset once, ascending.

    Of several parts that have an offset, the one with the highest first offset is chosen, as brokers do. So a segment
    whose last offset is stored too high hides no later ones. Of those, the one that ends last is chosen.
    """
    ascending = sorted(parts, key=lambda part: (part.first, part.after))
    begun: list[_Part] = []
    chosen: list[_Part] = []
    for part, stop in zip(ascending, [*(one.first for one in ascending[1:]), _UNBOUNDED], strict=False):
        begun.append(part)
        position = part.first
        while begun and position < stop:
            last = begun[-1]
            if last.after <= position:
                begun.pop()
                continue
            after = min(last.after, stop)
            chosen.append(_Part(last.segment, position, after))
            position = after
    return chosen
