"""Trimming a batch fetched from its middle (KIP-712)."""

from __future__ import annotations

import pytest

import kafkafmt as kf
import reference as ref
from _kafkafmt.batches.scan import BatchRun
from kafkafmt.records import decoding
from kafkafmt.records.runs import whole_batches
from kafkafmt.records.trimming import base_offset_of, cut_run, rows_between, runs_before, trimmed_run
from log.samples import batch
from records.samples import DAY, GAPS, ROWS, SAMPLES, WITH_HEADERS, as_rows


def only_batch(data: bytes) -> kf.RecordBatch:
    (batch,) = kf.MemoryRecords(data).batches()
    return batch


KEPT_BY_TRIM = [
    "magic",
    "codec",
    "timestamp_type",
    "partition_leader_epoch",
    "producer_id",
    "producer_epoch",
    "last_sequence",
    "is_transactional",
    "is_control",
    "delete_horizon_ms",
]


@pytest.mark.parametrize("codec", range(5))
@pytest.mark.parametrize("attributes", [0, ref.TIMESTAMP_TYPE, ref.DELETE_HORIZON, ref.TRANSACTIONAL])
def test_trim_when_from_any_offset_then_the_records_from_there_and_nothing_else_changes(attributes, codec):
    fields = {"base_offset": 1, "last_offset_delta": 9, "producer": (7, 1, 2**31 - 3), "leader_epoch": 6}
    if attributes == ref.DELETE_HORIZON:
        fields["base_timestamp"] = DAY + 10**6
    batch = only_batch(ref.batch_of(GAPS, codec=codec, attributes=attributes, **fields))
    rows = as_rows(batch)
    for first_offset in range(11):
        trimmed = batch.trim(first_offset)
        expected = [row for row in rows if row.offset >= first_offset]
        assert as_rows(trimmed) == expected  # sequences of the records too: they wrap in here
        assert ref.read_rows(bytes(trimmed.buffer)) == expected
        assert trimmed.is_valid()
        assert trimmed.count == len(expected)
        assert (trimmed.last_offset, trimmed.next_offset) == (10, 11)
        for name in KEPT_BY_TRIM:
            if name != "codec" or expected:
                assert getattr(trimmed, name) == getattr(batch, name), name
        if first_offset <= batch.base_offset:
            assert trimmed is batch
        elif expected:
            assert trimmed.base_offset == expected[0].offset
            assert trimmed.max_timestamp == max(row.timestamp for row in expected)
        else:
            assert trimmed.base_offset == first_offset


def test_trim_when_the_batch_is_gone_then_the_trimmed_one_stands_alone():
    batch = only_batch(bytearray(SAMPLES["v2 none"]))
    trimmed = batch.trim(11)
    del batch
    assert as_rows(trimmed) == ROWS[1:]
    assert as_rows(trimmed.trim(12)) == ROWS[2:]


def test_trim_when_headers_then_kept():
    assert as_rows(only_batch(SAMPLES["v2 headers"]).trim(1)) == WITH_HEADERS[1:]


@pytest.mark.parametrize("kind", ["v1 gzip", "v0 lz4", "v1 wrapper log append"])
def test_trim_when_below_v2_then_unsupported_version_unless_nothing_is_left_out(kind):
    batch = only_batch(SAMPLES[kind])
    assert batch.trim(10) is batch
    with pytest.raises(kf.UnsupportedVersionError):
        batch.trim(11)


def test_trim_when_past_the_batch_then_value_error():
    with pytest.raises(ValueError, match="first_offset: expected 12 at most, found 13"):
        only_batch(SAMPLES["v2 none"]).trim(13)


def test_trim_when_damaged_then_corrupt():
    data = bytearray(SAMPLES["v2 none"])
    data[-1] ^= 1
    with pytest.raises(kf.CorruptRecordError):
        only_batch(data).trim(11)


# Between offsets: which batches of a run have any


def run_of(magic: int, codec: int, *firsts: int) -> BatchRun:
    """Batches of three records each, from these offsets on."""
    return whole_batches(
        b"".join(
            batch(first, 3, magic=magic, codec=kf.Codec(codec), timestamp=-1 if magic == 0 else DAY)
            for first in firsts
        )
    )


@pytest.mark.parametrize(("magic", "codec"), [(0, 1), (1, 1), (2, 0), (2, 1)])
def test_rows_between_when_a_bound_is_within_a_batch_or_wrapper_then_it_is_among_them(magic, codec):
    run = run_of(magic, codec, 0, 3, 10, 13)
    held = [range(first, first + 3) for first in (0, 3, 10, 13)]
    for start in range(18):
        for end in range(start, 18):
            first, stop = rows_between(run, start, end)
            assert range(first, stop) == range(
                sum(one[-1] < start for one in held), max(first, sum(one[0] < end for one in held))
            )
        assert rows_between(run, start) == (first, 4)


@pytest.mark.parametrize("magic", [0, 1])
def test_rows_between_when_a_wrapper_cannot_be_decompressed_then_its_reader_gets_it(magic):
    run = run_of(magic, 1, 0, 10)
    assert rows_between(run, end_offset=11, max_decompressed_bytes=1) == (0, 2)
    assert rows_between(run, end_offset=10, max_decompressed_bytes=1) == (0, 2)
    assert rows_between(run, end_offset=3, max_decompressed_bytes=1) == (
        0,
        1,
    )  # the batch before it ends there


# Up to an offset: whole batches, and the one that contains it, cut


@pytest.mark.parametrize(("magic", "codec"), [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)])
def test_runs_before_when_the_end_is_within_a_batch_or_wrapper_then_has_all_records_before_it(magic, codec):
    run = run_of(magic, codec, 0, 3, 10, 13)
    held = [*range(6), *range(10, 16)]
    for end in range(18):
        found = [
            record.offset
            for part in runs_before(run, end)
            for number in range(len(part))
            for record in kf.RecordBatch(part, number)
        ]
        assert found == [offset for offset in held if offset < end]


def test_runs_before_when_the_batch_with_the_end_cannot_be_read_then_those_before_it_come_first():
    unreadable = ref.message(1, 12, DAY, None, b"no gzip", attributes=ref.GZIP)
    run = whole_batches(batch(0, 3, magic=1, codec=kf.Codec.GZIP) + unreadable)
    runs = runs_before(run, 11)
    assert next(runs).index["last_offset"].tolist() == [2]
    with pytest.raises(kf.CorruptRecordError) as raised:
        next(runs)
    assert raised.value.last_offset == 12


def test_base_offset_when_of_a_wrapper_then_by_its_records_or_else_its_last_offset():
    run = run_of(1, 1, 0, 3)
    assert [base_offset_of(run, number) for number in range(2)] == [0, 3]
    assert base_offset_of(run, 1, max_decompressed_bytes=1) == 5


@pytest.mark.parametrize("offsets", [(3, 5, 6), (5, 4, 6), (5, 5, 6)], ids=str)
def test_cut_when_offsets_of_records_are_not_those_of_a_batch_then_invalid_record_error(offsets):
    data = ref.batch_of([ref.Row(offset, DAY, None, b"value") for offset in offsets], base_offset=4)
    with pytest.raises(kf.InvalidRecordError, match="offset") as raised:
        cut_run(whole_batches(data), 0, 6)
    assert (raised.value.position, raised.value.last_offset) == (0, 6)


@pytest.mark.parametrize("magic", [1, 2])
@pytest.mark.parametrize("trims", [cut_run, trimmed_run])
def test_batch_when_it_decompresses_to_more_than_the_limit_then_is_not_trimmed_or_cut(trims, magic):
    rows = [ref.Row(offset, DAY, None, bytes(1000)) for offset in range(3)]
    data = ref.batch_of(rows, codec=ref.GZIP) if magic == 2 else ref.wrapper(1, ref.GZIP, rows)
    run = whole_batches(data)
    with pytest.raises(kf.DecompressionLimitError):
        trims(run, 0, 1, max_decompressed_bytes=2000)
    (trimmed,) = kf.MemoryRecords(trims(run, 0, 1, max_decompressed_bytes=4000).buffer).batches()
    assert [row.offset for row in as_rows(trimmed)] == ([0] if trims is cut_run else [1, 2])


def test_trim_when_the_last_offset_wrapped_then_invalid_record_error():
    """Its delta is below 0, and its base offset the lowest there is."""
    rows = [ref.Row(offset, DAY, None, None) for offset in range(-(2**63), -(2**63) + 3)]
    batch = only_batch(ref.batch_of(rows, last_offset_delta=-1))
    assert batch.last_offset == 2**63 - 1
    with pytest.raises(kf.InvalidRecordError, match="last offset: expected"):
        batch.trim(-(2**63) + 1)


@pytest.mark.parametrize("trims", [cut_run, trimmed_run])
def test_wrapper_when_its_converted_batch_is_over_the_limit_then_the_error_has_its_position(
    trims, monkeypatch
):
    """The records of a batch of v2 take less than messages, so it may have more of them than the limit allows."""
    monkeypatch.setattr(decoding, "_ALWAYS_LOCATED", 100)
    rows = [ref.Row(offset, DAY, None, None) for offset in range(10, 210)]
    before = batch(0, 10, magic=1)
    run = whole_batches(before + ref.wrapper(1, ref.GZIP, rows))
    with pytest.raises(kf.DecompressionLimitError) as raised:
        trims(run, len(run) - 1, 100, max_decompressed_bytes=7000)
    assert (raised.value.position, raised.value.last_offset) == (len(before), 209)
