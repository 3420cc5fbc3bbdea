"""Batches into located records: the codecs' part of decoding, bounded in what it holds at a time.

Kernels locate the records of many batches a call; a compressed batch first goes through its codec, here. A
group ends where its decompressed payloads pass a bound, so that memory follows the bound and not the input.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from _kafkafmt.decode import LocatedRecords, compressed_batches
from _kafkafmt.scan import BatchRun
from kafkafmt import codecs
from kafkafmt.errors import InvalidRecordError, KafkaFormatError

if TYPE_CHECKING:
    from numpy.typing import NDArray

Payload: TypeAlias = bytes | bytearray | memoryview
Payloads: TypeAlias = "list[Payload | None] | None"

GROUP_BYTES = 1024 * 1024


def describe(error: KafkaFormatError, run: BatchRun, number: int) -> KafkaFormatError:
    """`error`, told which batch it is about."""
    row = run.index[number]
    error.position = int(row["position"])
    error.next_position = error.position + int(row["size"])
    error.base_offset = int(row["base_offset"]) if row["base_offset"] >= 0 else None
    error.last_offset = int(row["last_offset"])
    return error


def without_control(run: BatchRun, *, verify: bool) -> tuple[BatchRun, KafkaFormatError | None]:
    """A run without its control batches; see `without`."""
    return without(run, run.index["is_control"], verify=verify)


def without(
    run: BatchRun, left_out: NDArray[np.bool_], *, verify: bool
) -> tuple[BatchRun, KafkaFormatError | None]:
    """A run without those batches, up to the first of them whose CRC fails, and the error of that one.

    A header that was damaged may say anything: without `verify`, records are left out then.
    """
    if not left_out.any():
        return run, None
    wanted, damage = ~left_out, None
    if verify:
        try:
            BatchRun(run.buffer, run.index[left_out], run.origin).ensure_valid()
        except KafkaFormatError as error:
            damage = error.with_traceback(None)
            wanted &= run.index["position"] < damage.position
    return BatchRun(run.buffer, run.index[wanted], run.origin), damage


def groups(run: BatchRun, *, verify: bool, limit: int) -> Iterator[tuple[int, int, Payloads]]:
    """A run in groups of batches that decompress to about `GROUP_BYTES`, one batch that is larger excepted.

    Yields first row, stop row, and the payloads: an entry a batch, None where it is not compressed; or None
    where none is. With `verify` the CRC of what is decompressed is checked before. `limit` bounds what one
    batch decompresses to. The error of a batch comes behind the group of those before it. The CRCs of messages in
    wrappers are for the caller to have checked.
    """
    first, size = 0, 0
    payloads: list[Payload | None] = []
    for number, codec, magic in compressed_batches(run, 0, len(run)):
        payloads += [None] * (number - first - len(payloads))
        try:
            if verify:
                run.ensure_valid(number, number + 1)
            payload = _decompress_batch(run, number, codec, magic, limit)
        except KafkaFormatError:
            if payloads:
                yield first, number, payloads
            raise
        payloads.append(payload)
        size += len(payload)
        if size >= GROUP_BYTES:
            yield first, number + 1, payloads
            first, size, payloads = number + 1, 0, []
    if first < len(run):
        missing = len(run) - first - len(payloads)
        yield first, len(run), payloads + [None] * missing if payloads else None


def _decompress_batch(run: BatchRun, number: int, codec: int, magic: int, limit: int) -> Payload:
    payload = run.payload(number)
    try:
        return codecs.decompress(codec, payload, limit=limit, magic=magic)
    except KafkaFormatError as error:
        raise describe(error, run, number) from None


def locate(
    run: BatchRun,
    first: int = 0,
    stop: int | None = None,
    *,
    verify: bool,
    limit: int,
    strict: bool = False,
) -> LocatedRecords:
    """The records of batches `first` to `stop`, all of them at once, CRCs checked first with `verify`.

    strict: checks wrappers as `verify` does, but not their own CRCs, and takes no part of a message at their end.
    """
    stop = len(run) if stop is None else stop
    if verify:
        run.ensure_valid(first, stop)
    compressed = compressed_batches(run, first, stop)
    if not compressed:
        return LocatedRecords(run, first, stop)
    payloads: list[Payload | None] = [None] * (stop - first)
    for number, codec, magic in compressed:
        payloads[number - first] = _decompress_batch(run, number, codec, magic, limit)
    return LocatedRecords(run, first, stop, payloads, verify=verify or strict, strict=strict)


def ascending_offsets(located: LocatedRecords, run: BatchRun, number: int) -> NDArray[np.int64]:
    """The offsets of records that are to be encoded anew, as batch `number` has them.

    Raises InvalidRecordError unless they ascend, by less than 2^31 in all: a batch could not hold them.
    """
    offsets = located.offsets()
    ascending = (offsets[1:] > offsets[:-1]).all()
    if len(offsets) and not (ascending and int(offsets[-1]) - int(offsets[0]) <= np.iinfo(np.int32).max):
        message = "offsets of the records: expected them to ascend by less than 2^31, found otherwise"
        raise describe(InvalidRecordError(message), run, number)
    return offsets


def locate_in_groups(run: BatchRun, *, verify: bool, control: bool, limit: int) -> Iterator[LocatedRecords]:
    """The records of a run, group by group; what stands before a damaged batch comes before its error.

    control: those of control batches, too.
    """
    damage = None
    if not control:
        run, damage = without_control(run, verify=verify)
    for first, stop, payloads in groups(run, verify=verify, limit=limit):
        yield from _located_group(run, first, stop, payloads, verify=verify)
    if damage is not None:
        try:
            raise damage
        finally:
            del damage


def _located_group(
    run: BatchRun, first: int, stop: int, payloads: Payloads, *, verify: bool
) -> Iterator[LocatedRecords]:
    damage = None
    end = stop
    while first < end:
        try:
            if verify:
                run.ensure_valid(first, end)
            some = payloads[: end - first] if payloads else None
            yield LocatedRecords(run, first, end, some, verify=verify)
        except KafkaFormatError as error:  # what stands before it may hold an earlier one
            damage = error
            end = int(run.index["position"].searchsorted(error.position or 0))
        else:
            break
    if damage is not None:
        try:
            raise damage
        finally:
            del damage  # no cycle of error, traceback and frame
