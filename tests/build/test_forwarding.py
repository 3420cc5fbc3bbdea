"""Batches on their way to another log: what a broker would refuse, what goes on as it is, and what is opened."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kafkafmt as kf
import reference as ref
from _kafkafmt.batches.scan import BatchRun, scan
from kafkafmt.build.forwarding import BatchForwarder, ForwardedRun, SourceRange
from kafkafmt.build.forwarding import RefusalReason as Reason
from kafkafmt.records.batch import only_batch
from records.samples import DAY, GAPS, ROWS, WITH_HEADERS, empty_batch, end_marker, rows_of
from reference import Row

LOG_APPEND = {"attributes": ref.TIMESTAMP_TYPE, "max_timestamp": DAY + 99}


def run_of(*batches: bytes) -> BatchRun:
    return scan(b"".join(batches))[0]


def forwarded(run: BatchRun, **options) -> tuple[list[ForwardedRun], kf.BatchForwarder]:
    forwarder = BatchForwarder(**options)
    return list(forwarder.forward(run)), forwarder


def until_error(run: BatchRun, **options) -> tuple[list[ForwardedRun], kf.KafkaFormatError]:
    """What is handed out before an error, and that."""
    runs: list[ForwardedRun] = []
    try:
        runs.extend(BatchForwarder(**options).forward(run))
    except kf.KafkaFormatError as error:
        return runs, error
    pytest.fail("no error")


def bytes_of(runs: list[ForwardedRun]) -> bytes:
    return b"".join(bytes(one.run.batch(number)) for one in runs for number in range(len(one.run)))


def data_of(rows: list[Row]) -> list[tuple]:
    return [(row.timestamp, row.key, row.value, row.headers) for row in rows]


def source_offsets(runs: list[ForwardedRun]) -> list[int]:
    return [
        offset
        for one in runs
        for number in range(len(one.run))
        for first, length in one.source_ranges(number)
        for offset in range(first, first + length)
    ]


REFUSED = {
    "nothing": (ref.batch_of(ROWS), []),
    "an idempotent producer": (ref.batch_of(ROWS, producer=(7, 1, 0)), []),
    "v0": (ref.messages(0, ROWS[:1]), [Reason.MAGIC]),
    "v1 wrapper": (ref.wrapper(1, ref.GZIP, ROWS), [Reason.MAGIC]),
    "control": (end_marker(3, commit=True), [Reason.CONTROL]),
    "empty": (empty_batch(), [Reason.EMPTY]),
    "gaps": (ref.batch_of(GAPS), [Reason.GAPS]),
    "a gap at the end": (ref.batch_of(ROWS, last_offset_delta=3), [Reason.GAPS]),
    "more records than offsets": (ref.batch_of(ROWS, last_offset_delta=1), [Reason.GAPS]),
    "transactional": (
        ref.batch_of(ROWS, attributes=ref.TRANSACTIONAL, producer=(7, 1, 0)),
        [Reason.PRODUCER_STATE],
    ),
    "no sequence": (ref.batch_of(ROWS, producer=(7, 1, -1)), [Reason.PRODUCER_STATE]),
    "log append time": (ref.batch_of(ROWS, **LOG_APPEND), [Reason.TIMESTAMP_TYPE]),
    "unknown codec": (ref.batch_of(ROWS, attributes=6), [Reason.CODEC]),
    "several": (
        ref.batch_of(GAPS, attributes=ref.TRANSACTIONAL | ref.TIMESTAMP_TYPE, producer=(7, 1, 0)),
        [Reason.GAPS, Reason.PRODUCER_STATE, Reason.TIMESTAMP_TYPE],
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_check_produce_when_batch_is_then_its_reasons(name):
    batch, reasons = REFUSED[name]
    found = kf.check_produce(only_batch(batch))
    assert [refusal.reason for refusal in found] == reasons
    assert all(": expected " in refusal.message for refusal in found)


def test_check_produce_when_larger_than_the_limit_then_size_to_the_byte():
    batch = only_batch(ref.batch_of(ROWS))
    assert kf.check_produce(batch, max_message_bytes=batch.size_in_bytes) == []
    (refusal,) = kf.check_produce(batch, max_message_bytes=batch.size_in_bytes - 1)
    assert refusal.reason is Reason.SIZE
    assert f"found {batch.size_in_bytes}" in refusal.message


def test_check_produce_when_a_byte_is_wrong_then_crc():
    batch = bytearray(ref.batch_of(ROWS))
    batch[-1] ^= 1
    assert [refusal.reason for refusal in kf.check_produce(only_batch(batch))] == [Reason.CRC]


def test_forward_when_a_broker_takes_all_then_the_run_itself():
    run = run_of(ref.batch_of(ROWS), ref.batch_of(WITH_HEADERS, codec=ref.ZSTD))
    (one,), forwarder = forwarded(run)
    assert one.run.buffer is run.buffer
    assert [one.source_ranges(0), one.source_ranges(1)] == [[SourceRange(10, 3)], [SourceRange(0, 2)]]
    assert (forwarder.stats.batches, forwarder.stats.opened.total(), forwarder.stats.left_out.total()) == (
        2,
        0,
        0,
    )
    assert forwarder.stats.bytes == len(run.buffer)


def test_forward_when_batches_have_producers_then_cleared_and_nothing_opened():
    given = [ref.batch_of(ROWS, codec=ref.LZ4, producer=(7, 1, 3)), ref.batch_of(WITH_HEADERS)]
    runs, forwarder = forwarded(run_of(*given))
    assert bytes_of(runs) == ref.batch_of(ROWS, codec=ref.LZ4) + given[1]
    assert not forwarder.stats.opened.total()


def test_forward_when_the_sender_stamps_its_own_producer_then_nothing_is_copied():
    run = run_of(ref.batch_of(ROWS, producer=(7, 1, 3)))
    (one,), _ = forwarded(run, clears_producer_state=False)
    assert one.run.buffer is run.buffer


def test_forward_when_markers_and_emptied_batches_then_left_out_and_counted():
    given = [ref.batch_of(ROWS), end_marker(13, commit=True), empty_batch(14), ref.batch_of(WITH_HEADERS)]
    runs, forwarder = forwarded(run_of(*given))
    assert bytes_of(runs) == given[0] + given[3]
    assert forwarder.stats.left_out == {Reason.CONTROL: 1, Reason.EMPTY: 1}
    assert forwarder.stats.batches == 4


@pytest.mark.parametrize("codec", list(kf.Codec))
def test_forward_when_a_batch_has_gaps_then_that_alone_is_opened(codec):
    before, behind = ref.batch_of(ROWS, codec=codec), ref.batch_of(WITH_HEADERS, codec=codec)
    runs, forwarder = forwarded(run_of(before, ref.batch_of(GAPS, codec=codec, producer=(7, 1, 3)), behind))
    assert [bytes_of([runs[0]]), bytes_of([runs[2]])] == [before, behind]
    batch = kf.RecordBatch(runs[1].run, 0)
    assert (batch.codec, batch.count, batch.last_offset - batch.base_offset, batch.producer_id) == (
        codec,
        4,
        3,
        -1,
    )
    assert kf.check_produce(batch) == []
    assert data_of(rows_of(bytes_of([runs[1]]))) == data_of(GAPS)
    assert runs[1].source_ranges(0) == [SourceRange(3, 1), SourceRange(5, 1), SourceRange(7, 2)]
    assert forwarder.stats.opened == {Reason.GAPS: 1}


def test_forward_when_log_append_time_and_the_target_keeps_timestamps_then_readers_see_the_same():
    run = run_of(ref.batch_of(ROWS, codec=ref.GZIP, **LOG_APPEND))
    runs, forwarder = forwarded(run)
    rows = rows_of(bytes_of(runs))
    assert {(row.timestamp, row.timestamp_type) for row in rows} == {(DAY + 99, ref.CREATE_TIME)}
    assert forwarder.stats.opened == {Reason.TIMESTAMP_TYPE: 1}


def test_forward_when_the_target_stamps_records_itself_then_nothing_is_opened():
    runs, forwarder = forwarded(run_of(ref.batch_of(ROWS, **LOG_APPEND)), is_log_append_time=True)
    assert kf.check_produce(kf.RecordBatch(runs[0].run, 0)) == []
    assert not forwarder.stats.opened.total()


@pytest.mark.parametrize("attributes", [0, ref.TIMESTAMP_TYPE])
@pytest.mark.parametrize("codec", [ref.NONE, ref.ZSTD])
def test_forward_when_too_large_then_parts_that_fit_with_all_records(codec, attributes):
    rows = [Row(n, DAY + n, b"key %d" % n, Random(n).randbytes(40)) for n in range(60)]
    fields = {"max_timestamp": DAY + 99} if attributes else {}
    batch = ref.batch_of(rows, codec=codec, attributes=attributes, producer=(7, 1, 3), **fields)
    runs, forwarder = forwarded(run_of(batch), max_message_bytes=900)
    assert len(runs) > 2
    for one in runs:
        part = kf.RecordBatch(one.run, 0)
        assert kf.check_produce(part, max_message_bytes=900) == []
        assert part.producer_id == -1
    assert data_of([row for one in runs for row in rows_of(bytes_of([one]))]) == data_of(rows_of(batch))
    assert source_offsets(runs) == list(range(60))
    assert forwarder.stats.opened == {Reason.SIZE: 1}


def test_forward_when_a_record_is_too_large_alone_then_those_before_it_go_on_and_the_error_names_it():
    rows = [Row(5, DAY, None, b"small"), Row(9, DAY, None, bytes(500)), Row(10, DAY, None, b"small, too")]
    runs, error = until_error(run_of(ref.batch_of(rows), ref.batch_of(ROWS)), max_message_bytes=300)
    assert isinstance(error, kf.RecordTooLargeError)
    assert str(error).startswith("record at offset 9: expected 300 bytes at most")
    assert (error.base_offset, error.last_offset) == (5, 10)
    assert (error.records[0].offset, source_offsets(runs)) == (9, [5])


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", [ref.NONE, ref.GZIP])
def test_forward_when_a_record_of_an_older_format_is_too_large_then_the_error_has_the_place_of_its_message(
    magic, codec
):
    rows = [
        Row(n, -1 if magic == 0 else DAY, None, Random(n).randbytes(500 if n == 25 else 10))
        for n in range(20, 30)
    ]
    before = ref.batch_of(ROWS)
    older = ref.wrapper(magic, codec, rows) if codec else ref.messages(magic, rows)
    run = run_of(before, older, ref.batch_of(GAPS))
    runs, error = until_error(run, max_message_bytes=300)
    assert isinstance(error, kf.RecordTooLargeError)
    row = run.index[-2] if codec else run.index[run.index["base_offset"] == 25][0]
    assert (error.position, error.next_position) == (row["position"], row["position"] + row["size"])
    assert (error.base_offset, error.last_offset) == ((20, 29) if codec else (25, 25))
    assert source_offsets(runs) == [10, 11, 12, *range(20, 25)]


@pytest.mark.parametrize("magic", [0, 1])
def test_forward_when_older_messages_then_converted_up_with_their_offsets(magic):
    rows = [Row(n, -1 if magic == 0 else DAY + n, b"k", b"v%d" % n) for n in range(20, 26)]
    given = [
        ref.batch_of(ROWS),
        ref.messages(magic, rows[:4]),
        ref.wrapper(magic, ref.GZIP, rows[4:]),
        ref.batch_of(GAPS),
    ]
    runs, forwarder = forwarded(run_of(*given))
    assert data_of([row for one in runs for row in rows_of(bytes_of([one]))]) == data_of(
        [*ROWS, *rows, *GAPS]
    )
    assert source_offsets(runs) == [10, 11, 12, *range(20, 26), 3, 5, 7, 8]
    assert forwarder.stats.opened == {Reason.MAGIC: 5, Reason.GAPS: 1}
    for one in runs:
        for number in range(len(one.run)):
            assert kf.check_produce(kf.RecordBatch(one.run, number)) == []


@pytest.mark.parametrize("damage", ["crc", "codec"])
def test_forward_when_a_batch_is_damaged_then_what_stands_before_it_goes_on(damage):
    bad = bytearray(ref.batch_of(GAPS, attributes=6 if damage == "codec" else 0))
    if damage == "crc":
        bad[-1] ^= 1
    good = ref.batch_of(ROWS)
    runs, error = until_error(run_of(good, bytes(bad), good))
    assert bytes_of(runs) == good
    assert (error.position, error.base_offset, error.last_offset) == (len(good), 3, 8)


@pytest.mark.parametrize("codec", [ref.NONE, ref.GZIP])
def test_forward_when_a_wrapper_cannot_be_opened_then_the_messages_before_it_go_on(codec):
    rows = [Row(n, DAY, b"k", b"v") for n in range(20, 30)]
    before = ref.batch_of(ROWS) + (ref.wrapper(1, codec, rows) if codec else ref.messages(1, rows))
    unreadable = ref.message(1, 35, DAY, None, b"no gzip", attributes=ref.GZIP)
    runs, error = until_error(run_of(before, unreadable, ref.messages(1, [Row(36, DAY, None, b"v")])))
    assert source_offsets(runs) == [10, 11, 12, *range(20, 30)]
    assert (error.position, error.last_offset) == (len(before), 35)


BATCHES = st.sampled_from(
    [
        ref.batch_of(ROWS),
        ref.batch_of(ROWS, codec=ref.GZIP, producer=(7, 1, 0)),
        ref.batch_of(GAPS),
        ref.batch_of(WITH_HEADERS, codec=ref.LZ4, **LOG_APPEND),
        ref.batch_of(ROWS, attributes=ref.DELETE_HORIZON, base_timestamp=DAY + 5),
        ref.messages(1, ROWS),
        ref.wrapper(1, ref.SNAPPY, ROWS),
        end_marker(3, commit=False),
        empty_batch(),
    ]
)


@settings(max_examples=200, deadline=None)
@given(st.lists(BATCHES, max_size=12), st.booleans(), st.sampled_from([None, 140, 10_000]))
def test_forward_when_any_batches_then_a_broker_takes_all_that_comes_out(batches, is_log_append_time, limit):
    runs, forwarder = forwarded(
        run_of(*batches), is_log_append_time=is_log_append_time, max_message_bytes=limit
    )
    found = []
    for one in runs:
        for number in range(len(one.run)):
            batch = kf.RecordBatch(one.run, number)
            assert kf.check_produce(batch, max_message_bytes=limit) == []
            assert sum(length for _, length in one.source_ranges(number)) == batch.count
            found += rows_of(bytes(batch.buffer))
    expected = [row for batch in batches for row in rows_of(batch) if batch != end_marker(3, commit=False)]
    assert [(row.key, row.value, row.headers) for row in found] == [
        (row.key, row.value, row.headers) for row in expected
    ]
    if not is_log_append_time:
        assert [row.timestamp for row in found] == [row.timestamp for row in expected]
    assert source_offsets(runs) == [row.offset for row in expected]
    assert forwarder.stats.bytes == sum(map(len, batches))
