"""Target: forwarding batches to another log.

Input: a byte of options, then a record set. Whatever the bytes are:

- a broker would take every batch that comes out, and knows where each record of it stood, small batches combined or
  not;
- where the reference reads it all, what comes out are its records but for markers, in order, with their offsets;
- damage is an error behind what stands in front of it; but records under a right CRC are looked at only where
  their batch is opened.
"""

from __future__ import annotations

from itertools import pairwise

import kafkafmt as kf
import reference as ref
from fuzz.convert import is_of_no_broker
from fuzz.oracle import (
    MAX_DECOMPRESSED_BYTES,
    batches_before_damage,
    memory_records,
    rows_before_damage,
    trusting_codecs,
    until_error,
)
from kafkafmt.build.combining import BatchCombiner, record_combiner
from kafkafmt.build.forwarding import ForwardedRun
from kafkafmt.types import Isolation
from records.samples import as_rows

OPTIONS_LENGTH = 1
LIMITS = (None, 100, 200, 1000)
BATCH_SIZE = 64 * 1024  # most of the batches are small beside it, compressed or not
ISOLATIONS: tuple[Isolation | None, ...] = (None, "read_committed", "read_uncommitted", "read_committed")


def check(data: bytes) -> None:
    options, data = data[0] if data else 0, data[OPTIONS_LENGTH:]
    limit, keeps_timestamps = LIMITS[options % len(LIMITS)], not options & 4
    isolation = ISOLATIONS[options // 8 % len(ISOLATIONS)]
    kernel = record_combiner(MAX_DECOMPRESSED_BYTES)
    forwarder = kf.BatchForwarder(
        max_message_bytes=limit,
        is_log_append_time=not keeps_timestamps,
        max_decompressed_bytes=MAX_DECOMPRESSED_BYTES,
        combiner=BatchCombiner(BATCH_SIZE, isolation=isolation, kernel=kernel) if isolation else None,
    )
    with trusting_codecs():
        forwarded, error = until_error(
            one for run in memory_records(data).runs(run_bytes=300) for one in forwarder.forward(run)
        )
        batches = [
            (kf.RecordBatch(one.run, number), _offsets(one, number))
            for one in forwarded
            for number in range(len(one.run))
        ]
        for batch, offsets in batches:
            assert not kf.check_produce(batch, max_message_bytes=limit)
            assert len(offsets) == batch.count
        for one in forwarded:
            one.run.ensure_valid()
        _, is_damaged = rows_before_damage(data, verify=True)
        if not is_damaged and error is None:
            _check_records(data, batches, keeps_timestamps=keeps_timestamps)


def _offsets(forwarded: ForwardedRun, number: int) -> list[int]:
    return [first + i for first, length in forwarded.source_ranges(number) for i in range(length)]


def _check_records(
    data: bytes, batches: list[tuple[kf.RecordBatch, list[int]]], *, keeps_timestamps: bool
) -> None:
    sources, _ = batches_before_damage(data)
    if any(map(is_of_no_broker, sources)):
        return
    expected = [row for batch in sources if not batch.is_control for row in batch.rows()]
    found = [row for batch, _ in batches for row in as_rows(memory_records(bytes(batch)).records())]
    assert [row[2:5] for row in found] == [row[2:5] for row in expected]
    if keeps_timestamps:
        assert [row.timestamp for row in found] == [row.timestamp for row in expected]
    offsets = [offset for _, offsets in batches for offset in offsets]
    if all(map(_numbers_its_records, sources)):
        assert offsets == [row.offset for row in expected]


def _numbers_its_records(batch: ref.Batch) -> bool:
    """Is it a v2 batch with its records where its header has them? Not to be known without decompressing."""
    if batch.magic < 2:
        return False
    offsets = [row.offset for row in batch.rows()]
    is_within = all(batch.fields["base_offset"] <= offset <= batch.last_offset for offset in offsets)
    return is_within and all(first < second for first, second in pairwise(offsets))
