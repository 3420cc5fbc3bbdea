"""Batches into located records: the codecs' part of decoding, bounded in what it holds at a time.

Kernels locate the records of many batches a call; a compressed batch first goes through its codec, here. A
group ends where its decompressed payloads pass a bound, so that memory follows the bound and not the input.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from _kafkafmt.decode import LocatedRecords
from kafkafmt import codecs
from kafkafmt.errors import KafkaFormatError

if TYPE_CHECKING:
    from _kafkafmt.scan import BatchRun

Payload = bytes | bytearray | memoryview

GROUP_BYTES = 4 * 1024 * 1024


def describe(error: KafkaFormatError, run: BatchRun, number: int) -> KafkaFormatError:
    """`error`, told which batch it is about."""
    row = run.index[number]
    error.position = int(row["position"])
    error.next_position = error.position + int(row["size"])
    error.base_offset = int(row["base_offset"]) if row["base_offset"] >= 0 else None
    error.last_offset = int(row["last_offset"])
    return error


def decompress_batch(run: BatchRun, number: int, limit: int) -> Payload:
    """The decompressed records of one batch; raises as `codecs.decompress`, with the batch's position."""
    row = run.index[number]
    try:
        return codecs.decompress(int(row["codec"]), run.payload(number), limit=limit, magic=int(row["magic"]))
    except KafkaFormatError as error:
        raise describe(error, run, number) from None


def locate(
    run: BatchRun, first: int = 0, stop: int | None = None, *, verify: bool, limit: int
) -> LocatedRecords:
    """The records of batches `first` to `stop`, all of them at once.

    With `verify` CRCs are checked before anything is decompressed. `limit` bounds the decompressed bytes of
    each batch.
    """
    stop = len(run) if stop is None else stop
    if verify:
        run.ensure_valid(first, stop)
    rows = run.index[first:stop]
    compressed = ((rows["codec"] != 0) & (rows["count"] != 0)).nonzero()[0]
    if not len(compressed):
        return LocatedRecords(run, first, stop)
    payloads: list[Payload | None] = [None] * (stop - first)
    for i in compressed.tolist():
        payloads[i] = decompress_batch(run, first + i, limit)
    return LocatedRecords(run, first, stop, payloads)


def locate_in_groups(
    run: BatchRun, *, verify: bool, limit: int, group_bytes: int = GROUP_BYTES
) -> Iterator[LocatedRecords]:
    """The records of a run, in groups of whole batches; what stands before a damaged batch comes first."""
    first = 0
    while first < len(run):
        stop = _group_end(run, first, group_bytes)
        damage = None
        while first < stop:
            try:
                located = locate(run, first, stop, verify=verify, limit=limit)
            except KafkaFormatError as error:  # what stands before it may hold an earlier one
                damage = error
                stop = int(run.index["position"].searchsorted(error.position or 0))
            else:
                yield located
                first = stop
        if damage is not None:
            raise damage


def _group_end(run: BatchRun, first: int, group_bytes: int) -> int:
    """Where a group that begins at `first` ends: compressed batches are taken to grow fivefold."""
    rows = run.index[first:]
    sizes = rows["size"].astype("i8")
    sizes[rows["codec"] != 0] *= 5
    return first + max(1, int(sizes.cumsum().searchsorted(group_bytes, side="right")))
