"""Cutting a segment into ranges of bytes that are read on their own, each from one batch's beginning to another's.

A cut that is no boundary would lose records on one side and make them up on the other, so none is taken on trust:
what an index names is held against the log, and where it does not hold, headers are followed from the last cut.
"""

from __future__ import annotations

from itertools import pairwise

from kafkafmt.errors import KafkaFormatError
from kafkafmt.log.indexes import OffsetIndex
from kafkafmt.log.segment import begins_batch
from kafkafmt.records import Records


def split_points(
    records: Records, split_bytes: int, index: OffsetIndex | None = None
) -> list[tuple[int, int]]:
    """Start and end of ranges of about `split_bytes`, end to end, that cover `records`; none where these are empty.

    Each begins where a batch does. A range may be half as large again, since no small one is left at the end,
    and is larger where one batch is, or where damage ends the chain of headers: that is for the reader to meet.
    Without an `index`, or where it does not reach, all headers are followed; a batch of more than some 64 KiB
    costs no more than that. Raises ValueError for a `split_bytes` below 1, and OSError.
    """
    if split_bytes < 1:
        raise ValueError(f"split_bytes: expected 1 or more, found {split_bytes}")
    start, end = records.start_position, records.end_position
    cuts = [start]
    while end - cuts[-1] > split_bytes * 3 // 2:
        cut = _next_cut(records, split_bytes, index, cuts[-1])
        if cut >= end:
            break
        cuts.append(cut)
    return list(pairwise([*cuts, end])) if start < end else []


def _next_cut(records: Records, split_bytes: int, index: OffsetIndex | None, last: int) -> int:
    """The boundary about `split_bytes` behind the `last` one; the end where there is none, or where damage is."""
    target = last + split_bytes
    entry = index.entry_at_or_below(target) if index is not None else None
    if index is not None and entry is not None:
        offset, position = entry
        if position > last + split_bytes // 2 and begins_batch(records, position, index.base_offset, offset):
            return position
    try:
        return records.find_batch_start(target, last)
    except KafkaFormatError:
        return records.end_position
