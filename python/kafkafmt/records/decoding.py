"""Decode batches into located records, in bounded memory.

This module decompresses batches. Then one kernel call locates the records of many batches. A chunk ends as soon as its
decompressed payloads reach a bound, so that memory depends on the bound and not on the input.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from _kafkafmt.records.decode import LocatedRecords, compressed_batches
from _kafkafmt.wire.layout import MIN_RECORD_SIZE
from kafkafmt import codecs
from kafkafmt.errors import DecompressionLimitError, InvalidRecordError, KafkaFormatError
from kafkafmt.records.runs import with_batch, without_control

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from _kafkafmt.batches.scan import BatchRun

Payload: TypeAlias = bytes | bytearray | memoryview
Payloads: TypeAlias = "list[Payload | None] | None"

CHUNK_BYTES = 1024 * 1024
# What a located record takes, however small it is, so that its batch counts as many bytes.
_LOCATED_RECORD_BYTES = 64
# So many records of a batch are located whatever the limit is.
_ALWAYS_LOCATED = 1 << 20


def decompressed_chunks(run: BatchRun, *, verify: bool, limit: int) -> Iterator[tuple[int, int, Payloads]]:
    """Yield a run in chunks of batches, each with about `CHUNK_BYTES` of decompressed payloads, or one larger payload.

    A chunk is its first row, its stop row, and a list of decompressed payloads. The list has an entry per batch: None
    for an uncompressed batch. If no batch is compressed, None takes the place of the list.

    With `verify` the CRC of a compressed batch is checked before it is decompressed. The caller checks the CRCs of
    other batches, and of messages in wrappers. `limit` is the most bytes that one batch may decompress to, and that its
    records may take when they are located. The error of a batch is raised after the chunk of the batches before it.
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
        if size >= CHUNK_BYTES:
            yield first, number + 1, payloads
            first, size, payloads = number + 1, 0, []
    if first < len(run):
        missing = len(run) - first - len(payloads)
        yield first, len(run), payloads + [None] * missing if payloads else None


def _decompress_batch(run: BatchRun, number: int, codec: int, magic: int, limit: int) -> Payload:
    payload = run.payload(number)
    try:
        records = codecs.decompress(codec, payload, limit=limit, magic=magic)
        _ensure_few_records(run, number, magic, len(records), limit)
    except KafkaFormatError as error:
        raise with_batch(error, run, number) from None
    return records


def _ensure_few_records(run: BatchRun, number: int, magic: int, size: int, limit: int) -> None:
    """Raise DecompressionLimitError if the records of a v2 batch, in `size` bytes, would take too much memory.

    A payload of 256 MiB may have 38 million records, compressed to some KiB. Messages of v0 and v1 take more bytes.
    """
    most = max(limit // _LOCATED_RECORD_BYTES, _ALWAYS_LOCATED)
    if magic < 2 or size // MIN_RECORD_SIZE <= most:
        return
    count = int(run.index["count"][number])
    if most < count <= size // MIN_RECORD_SIZE:
        raise DecompressionLimitError(
            f"records of a batch: expected at most {most} with a limit of {limit} bytes, found {count}"
        )


def locate(
    run: BatchRun,
    first: int = 0,
    stop: int | None = None,
    *,
    verify: bool,
    limit: int,
    strict: bool = False,
) -> LocatedRecords:
    """Locate the records of batches `first` to `stop` (exclusive), all at once.

    verify: check the CRCs of the batches first, and those of messages in wrappers.
    limit: the most bytes that one batch may decompress to.
    strict: check the CRCs of messages in wrappers without `verify`, too. A partial message at the end of a wrapper is
        then an error.

    Raises KafkaFormatError for a damaged batch, with the batch's position.
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
    """Return the offsets of the located records of batch `number`.

    Raises InvalidRecordError unless they ascend, by less than 2^31 in all: no batch could hold them.
    """
    offsets = located.offsets()
    ascending = (offsets[1:] > offsets[:-1]).all()
    if len(offsets) and not (ascending and int(offsets[-1]) - int(offsets[0]) <= np.iinfo(np.int32).max):
        message = "offsets of the records: expected them to ascend by less than 2^31, found otherwise"
        raise with_batch(InvalidRecordError(message), run, number)
    return offsets


def locate_in_chunks(
    run: BatchRun, *, verify: bool, control: bool, limit: int, is_checked: bool = False
) -> Iterator[LocatedRecords]:
    """Yield the located records of a run, chunk by chunk. The error of a damaged batch is raised after those before it.

    verify: check CRCs. control: include the records of control batches. limit: as for `decompressed_chunks`.
    is_checked: the caller has checked the CRCs of the batches, so that only those of messages in wrappers are checked.
    """
    if not control:
        run = without_control(run, verify=verify and not is_checked)
    for first, stop, payloads in decompressed_chunks(run, verify=verify and not is_checked, limit=limit):
        yield from _located_chunk(run, first, stop, payloads, verify=verify, is_checked=is_checked)


def _located_chunk(
    run: BatchRun, first: int, stop: int, payloads: Payloads, *, verify: bool, is_checked: bool
) -> Iterator[LocatedRecords]:
    try:
        if verify and not is_checked:
            run.ensure_valid(first, stop)
        located = LocatedRecords(run, first, stop, payloads, verify=verify)
    except KafkaFormatError as error:  # the batches before it may have an error, too: locate them again
        end = int(run.index["position"].searchsorted(error.position or 0))
        if first < end:
            before = payloads[: end - first] if payloads else None
            yield from _located_chunk(run, first, end, before, verify=verify, is_checked=is_checked)
        raise
    yield located
