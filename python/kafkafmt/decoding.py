"""Batches into located records: the codecs' part of decoding, bounded in what it holds at a time.

Kernels locate the records of many batches a call; a compressed batch first goes through its codec, here. A
group ends where its decompressed payloads pass a bound, so that memory follows the bound and not the input.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from _kafkafmt.decode import LocatedRecords
from kafkafmt import codecs
from kafkafmt.errors import InvalidRecordError, KafkaFormatError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from _kafkafmt.scan import BatchRun

Payload = bytes | bytearray | memoryview

GROUP_BYTES = 1024 * 1024


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


def decompress(
    run: BatchRun, first: int, stop: int, *, verify: bool, limit: int
) -> tuple[list[Payload | None] | None, int, KafkaFormatError | None]:
    """The payloads of batches `first` to `stop`, None for those that are not compressed, or None if all are not.

    Second comes the row of the first batch that cannot be decompressed, or `stop`; third, why. With `verify`
    the CRC of what is decompressed is checked before. `limit` bounds what each one decompresses to.
    """
    rows = run.index[first:stop]
    compressed = ((rows["codec"] != 0) & (rows["count"] != 0)).nonzero()[0].tolist()
    if not compressed:
        return None, stop, None
    payloads: list[Payload | None] = [None] * (stop - first)
    for i in compressed:
        number = first + i
        try:
            if verify:
                run.ensure_valid(number, number + 1)
            payloads[i] = _decompress_batch(run, number, limit)
        except KafkaFormatError as error:
            return payloads[:i], number, error
    return payloads, stop, None


def _decompress_batch(run: BatchRun, number: int, limit: int) -> Payload:
    row = run.index[number]
    payload = run.payload(number)
    try:
        return codecs.decompress(int(row["codec"]), payload, limit=limit, magic=int(row["magic"]))
    except KafkaFormatError as error:
        raise describe(error, run, number) from None


def locate(
    run: BatchRun, first: int = 0, stop: int | None = None, *, verify: bool, limit: int
) -> LocatedRecords:
    """The records of batches `first` to `stop`, all of them at once, CRCs checked first with `verify`."""
    stop = len(run) if stop is None else stop
    if verify:
        run.ensure_valid(first, stop)
    payloads, _, error = decompress(run, first, stop, verify=False, limit=limit)
    if error is not None:
        try:
            raise error
        finally:
            del error  # no cycle of error, traceback and frame
    return LocatedRecords(run, first, stop, payloads)


def ascending_offsets(located: LocatedRecords, run: BatchRun, number: int) -> NDArray[np.int64]:
    """The offsets of records that are to be encoded anew, as batch `number` has them.

    Raises InvalidRecordError unless they ascend, by less than 2^31 in all: a batch could not hold them.
    """
    offsets = located.offsets()
    if len(offsets) and ((np.diff(offsets) <= 0).any() or offsets[-1] - offsets[0] > np.iinfo(np.int32).max):
        message = "offsets of the records: expected them to ascend by less than 2^31, found otherwise"
        raise describe(InvalidRecordError(message), run, number)
    return offsets


def groups(run: BatchRun, group_bytes: int = GROUP_BYTES) -> Iterator[tuple[int, int]]:
    """A run's rows in groups, compressed batches taken to grow fivefold, so that memory stays bounded."""
    sizes = run.index["size"].astype("i8")
    sizes[run.index["codec"] != 0] *= 5
    ends = sizes.cumsum()
    first, done = 0, 0
    while first < len(run):
        stop = max(first + 1, int(ends.searchsorted(done + group_bytes, side="right")))
        yield first, stop
        first, done = stop, int(ends[stop - 1])


def locate_in_groups(run: BatchRun, *, verify: bool, limit: int) -> Iterator[LocatedRecords]:
    """The records of a run, group by group; what stands before a damaged batch comes before its error."""
    for start, end in groups(run):
        first, stop = start, end
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
            try:
                raise damage
            finally:
                del damage  # no cycle of error, traceback and frame
