"""Small batches that become larger ones: all records are the same, in order, and each source offset is known."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kafkafmt as kf
import reference as ref
from _kafkafmt.batches.scan import BatchRun, scan
from kafkafmt.build.combining import SMALL_FRACTIONS, BatchCombiner, record_combiner
from kafkafmt.build.forwarding import BatchForwarder, ForwardedRun
from kafkafmt.build.forwarding import RefusalReason as Reason
from records.samples import DAY, GAPS, ROWS, WITH_HEADERS, empty_batch, end_marker, rows_of
from reference import Row

BATCH_SIZE = 64 * 1024
LOG_APPEND = {"attributes": ref.TIMESTAMP_TYPE, "max_timestamp": DAY + 99}
TRANSACTIONAL = {"attributes": ref.TRANSACTIONAL}


def run_of(*batches: bytes) -> BatchRun:
    return scan(b"".join(batches))[0]


def small(offset: int, count: int = 3, *, size: int = 10, **fields: object) -> bytes:
    rows = [Row(offset + n, DAY + offset + n, b"%d" % n, b"v" * size) for n in range(count)]
    return ref.batch_of(rows, **fields)


def combined(
    *batches: bytes, batch_size: int = BATCH_SIZE, isolation: str = "read_committed", **options: object
) -> tuple[list[ForwardedRun], BatchForwarder]:
    forwarder = BatchForwarder(combiner=BatchCombiner(batch_size, isolation=isolation), **options)
    return list(forwarder.forward(run_of(*batches))), forwarder


def shapes(runs: list[ForwardedRun]) -> list[tuple[str, int, list[int]]]:
    """How each was forwarded, of how many batches of the source, and how many records its batches have."""
    return [(one.way, one.source_batches, one.run.index["count"].tolist()) for one in runs]


def rows_in(runs: list[ForwardedRun]) -> list[Row]:
    return [row for one in runs for n in range(len(one.run)) for row in rows_of(bytes(one.run.batch(n)))]


def source_offsets(runs: list[ForwardedRun]) -> list[int]:
    firsts, lengths = (
        np.concatenate(arrays) for arrays in zip(*(one.source_arrays() for one in runs), strict=True)
    )
    return [
        first + i
        for first, length in zip(firsts.tolist(), lengths.tolist(), strict=True)
        for i in range(length)
    ]


def data_of(rows: list[Row]) -> list[tuple]:
    return [(row.timestamp, row.key, row.value, row.headers) for row in rows]


@pytest.mark.parametrize("codec", list(kf.Codec))
def test_combine_when_neighbours_are_small_then_one_batch_of_the_same_codec(codec):
    batches = [small(n * 3, codec=codec) for n in range(5)]
    (one,), forwarder = combined(*batches)
    assert shapes([one]) == [("combined", 5, [15])]
    assert one.source_bytes == sum(map(len, batches))
    batch = kf.RecordBatch(one.run, 0)
    batch.ensure_valid()
    assert kf.check_produce(batch) == []
    assert (batch.codec, batch.base_offset, batch.last_offset, batch.producer_id) == (codec, 0, 14, -1)
    assert (batch.base_timestamp, batch.max_timestamp) == (DAY, DAY + 14)
    rows = [row for each in batches for row in rows_of(each)]
    assert data_of(rows_in([one])) == data_of(rows)
    assert source_offsets([one]) == list(range(15))
    assert not forwarder.stats.opened.total()


def test_combine_when_records_differ_in_every_field_then_each_keeps_its_own():
    rows = [
        Row(0, DAY, None, None),
        Row(1, -1, b"", b""),
        Row(2, 2**62, b"k" * 300, b"v" * 70_000, ((b"h", None), (b"", b"x" * 200))),
        Row(3, 0, b"\xff", b"\0"),
    ]
    batches = [ref.batch_of([row], max_timestamp=row.timestamp) for row in rows]
    (one,), _ = combined(*batches, batch_size=1 << 20)
    assert data_of(rows_in([one])) == data_of(rows)
    assert kf.RecordBatch(one.run, 0).max_timestamp == 2**62


def test_combine_when_a_batch_is_large_then_it_goes_on_as_it_is_between_the_others():
    large = small(6, size=3000)
    runs, _ = combined(small(0), small(3), large, small(9), small(12), batch_size=8 * 1024)
    assert shapes(runs) == [("combined", 2, [6]), ("raw", 1, [3]), ("combined", 2, [6])]
    assert bytes(runs[1].run.batch(0)) == large


def test_combine_when_a_batch_between_is_too_large_for_the_target_then_it_is_split_in_its_place():
    batches = [small(0, 1), small(1, 1), small(2, 20), small(22, 1), small(23, 1)]
    runs, forwarder = combined(*batches, max_message_bytes=200)
    assert [one.way for one in runs] == ["combined", *["opened"] * (len(runs) - 2), "combined"]
    assert source_offsets(runs) == list(range(24))
    assert forwarder.stats.opened == {Reason.SIZE: 1}


@pytest.mark.parametrize(("codec", "fraction"), SMALL_FRACTIONS.items())
def test_small_when_a_batch_takes_a_fraction_of_the_batch_size_then_is_not(codec, fraction):
    batches = [small(0, 20, codec=codec), small(20, 20, codec=codec)]
    size = max(map(len, batches))
    assert shapes(combined(*batches, batch_size=(size + 1) * fraction)[0]) == [("combined", 2, [40])]
    assert shapes(combined(*batches, batch_size=size * fraction)[0])[0][0] == "raw"


def test_combine_when_a_batch_is_alone_then_the_same_bytes():
    batches = [small(0), small(3, codec=ref.GZIP), small(6)]
    runs, _ = combined(*batches)
    assert shapes(runs) == [("raw", 3, [3, 3, 3])]
    assert runs[0].run.buffer == b"".join(batches)


def test_combine_when_codecs_change_then_a_batch_of_each():
    batches = [
        small(n * 3, codec=codec) for n, codec in enumerate([ref.LZ4, ref.LZ4, ref.NONE, ref.NONE, ref.NONE])
    ]
    runs, _ = combined(*batches)
    assert shapes(runs) == [("combined", 2, [6]), ("combined", 3, [9])]


@pytest.mark.parametrize("codec", [ref.NONE, ref.ZSTD])
@pytest.mark.parametrize("limit", [None, 3000])
def test_combine_when_all_is_too_much_for_a_batch_then_several_that_fit(codec, limit):
    random = np.random.default_rng(1)
    rows = [Row(n, DAY, None, random.bytes(80)) for n in range(4000)]
    batches = [ref.batch_of(rows[n : n + 2], codec=codec) for n in range(0, 4000, 2)]
    runs, _ = combined(*batches, max_message_bytes=limit)
    most = limit or BATCH_SIZE
    sizes = [int(one.run.index["size"][0]) for one in runs]
    assert max(sizes) <= most
    assert min(sizes[1:-1]) > 0.8 * most
    assert data_of(rows_in(runs)) == data_of(rows)
    assert source_offsets(runs) == list(range(4000))


@pytest.mark.parametrize("codec", [ref.LZ4, ref.ZSTD])
def test_combine_when_the_first_batches_shrink_much_then_are_combined(codec):
    """One of them takes nearly the bytes of a combined batch before compression, and all together hardly any."""
    batches = [small(n, 1, size=BATCH_SIZE * 19 // 20, codec=codec) for n in range(6)]
    runs, _ = combined(*batches)
    assert [way for way, *_ in shapes(runs)] == ["combined"] * 2


def test_combine_when_a_kernel_is_given_then_its_limit_is_kept():
    """A batch takes no more before compression than one that is opened may take."""
    kernel = record_combiner(16 * 1024)
    for codec in (ref.NONE, ref.ZSTD):
        batches = [small(n, 1, size=1000, codec=codec) for n in range(40)]
        combiner = BatchCombiner(BATCH_SIZE, kernel=kernel)
        runs = list(BatchForwarder(combiner=combiner).forward(run_of(*batches)))
        assert [way for way, *_ in shapes(runs)] == ["combined"] * 3
        assert max(count for *_, (count,) in shapes(runs)) == 16


def test_combine_when_deltas_take_more_bytes_than_before_then_the_limit_is_kept():
    """One record a batch has deltas of one byte; in a combined batch they take more."""
    rows = [Row(n, DAY + n * 1000, None, None) for n in range(2000)]
    batch_size = 16 * 1024
    runs, _ = combined(*(ref.batch_of([row]) for row in rows), batch_size=batch_size)
    sizes = [int(one.run.index["size"][0]) for one in runs]
    assert 0.99 * batch_size < max(sizes) <= batch_size
    assert data_of(rows_in(runs)) == data_of(rows)


@pytest.mark.parametrize("codec", [ref.NONE, ref.LZ4])
def test_combine_when_offsets_have_gaps_then_none_are_left_and_the_source_is_known(codec):
    batches = [
        ref.batch_of(GAPS, codec=codec),
        end_marker(9, commit=True),
        ref.batch_of(ROWS, codec=codec),
        empty_batch(20, 4),
        small(30, codec=codec),
    ]
    runs, forwarder = combined(*batches)
    assert shapes(runs) == [("combined", 3, [10])]
    assert source_offsets(runs) == [3, 5, 7, 8, 10, 11, 12, 30, 31, 32]
    assert [tuple(one) for one in runs[0].source_ranges(0)] == [(3, 1), (5, 1), (7, 2), (10, 3), (30, 3)]
    assert forwarder.stats.opened == {Reason.GAPS: 1}
    assert forwarder.stats.left_out == {Reason.CONTROL: 1, Reason.EMPTY: 1}


@pytest.mark.parametrize("codec", [ref.NONE, ref.GZIP])
def test_combine_when_log_append_time_then_each_record_has_the_time_of_its_batch_apart_from_others(codec):
    batches = [
        small(n * 3, codec=codec, attributes=ref.TIMESTAMP_TYPE, max_timestamp=DAY + n) for n in range(3)
    ]
    later = [small(n, codec=codec) for n in (9, 12)]
    runs, forwarder = combined(*batches, *later)
    assert shapes(runs) == [("combined", 3, [9]), ("combined", 2, [6])]
    rows = rows_in(runs)
    times = [DAY] * 3 + [DAY + 1] * 3 + [DAY + 2] * 3
    assert [row.timestamp for row in rows] == [*times, *range(DAY + 9, DAY + 15)]
    assert {row.timestamp_type for row in rows} == {ref.CREATE_TIME}
    assert forwarder.stats.opened == {Reason.TIMESTAMP_TYPE: 3}


def test_combine_when_the_target_stamps_records_itself_then_they_have_the_times_of_their_producer():
    batches = [small(n * 3, attributes=ref.TIMESTAMP_TYPE, max_timestamp=DAY + 99) for n in range(3)]
    runs, forwarder = combined(*batches, is_log_append_time=True)
    assert [row.timestamp for row in rows_in(runs)] == [DAY + n for n in range(9)]
    assert not forwarder.stats.opened.total()


def test_combine_when_batches_have_a_delete_horizon_then_the_timestamps_of_their_records_stay():
    horizon = {"attributes": ref.DELETE_HORIZON, "base_timestamp": DAY + 86_400_000}
    batches = [ref.batch_of(WITH_HEADERS, **horizon), ref.batch_of(ROWS, **horizon)]
    runs, _ = combined(*batches)
    assert kf.RecordBatch(runs[0].run, 0).delete_horizon_ms is None
    assert data_of(rows_in(runs)) == data_of([*WITH_HEADERS, *ROWS])


def test_combine_when_older_messages_then_what_they_are_converted_to():
    rows = [Row(n, DAY + n, b"k", b"v%d" % n) for n in range(9)]
    batches = [ref.wrapper(1, ref.GZIP, rows[n : n + 3]) for n in range(0, 9, 3)]
    runs, forwarder = combined(*batches)
    assert shapes(runs) == [("combined", 3, [9])]
    assert data_of(rows_in(runs)) == data_of(rows)
    assert source_offsets(runs) == list(range(9))
    assert forwarder.stats.opened == {Reason.MAGIC: 3}


# Transactions


def test_combine_when_only_committed_records_are_read_then_across_transactions_and_producers():
    batches = [
        small(0, producer=(7, 0, 0), **TRANSACTIONAL),
        end_marker(3, commit=True),
        small(4, producer=(8, 0, 0), **TRANSACTIONAL),
        small(7, producer=(9, 0, 0)),
        small(10),
    ]
    runs, _ = combined(*batches)
    assert shapes(runs) == [("combined", 4, [12])]
    assert not kf.RecordBatch(runs[0].run, 0).is_transactional


APART = {
    "another producer": [
        small(0, producer=(7, 0, 0), **TRANSACTIONAL),
        small(3, producer=(8, 0, 0), **TRANSACTIONAL),
    ],
    "another epoch": [
        small(0, producer=(7, 0, 0), **TRANSACTIONAL),
        small(3, producer=(7, 1, 0), **TRANSACTIONAL),
    ],
    "a marker between": [
        small(0, producer=(7, 0, 0), **TRANSACTIONAL),
        end_marker(3, commit=False),
        small(4, producer=(7, 0, 3), **TRANSACTIONAL),
    ],
    "a marker that was left out": [
        small(0, producer=(7, 0, 0), **TRANSACTIONAL),
        small(4, producer=(7, 0, 3), **TRANSACTIONAL),
    ],
    "no transaction": [small(0, producer=(7, 0, 0), **TRANSACTIONAL), small(3, producer=(7, 0, 3))],
    "a transaction after none": [small(0), small(3, producer=(7, 0, 3), **TRANSACTIONAL)],
}


@pytest.mark.parametrize("name", APART)
def test_combine_when_transactions_may_be_open_then_not_with_another(name):
    runs, _ = combined(*APART[name], isolation="read_uncommitted")
    assert {one.way for one in runs} == {"raw"}
    assert {one.way for one in combined(*APART[name])[0]} == {"combined"}


def test_combine_when_transactions_may_be_open_then_within_one_and_without_any():
    batches = [
        *(small(n * 3, producer=(7, 0, n * 3), **TRANSACTIONAL) for n in range(3)),
        end_marker(9, commit=False),
        small(10, producer=(8, 0, 0)),
        small(20),
        small(23, producer=(9, 0, 0)),
    ]
    runs, _ = combined(*batches, isolation="read_uncommitted")
    assert shapes(runs) == [("combined", 3, [9]), ("combined", 3, [9])]


# Damage


def invalid(offset: int) -> bytes:
    """A batch with a right CRC and a record that ends early."""
    return ref.batch(ref.records([Row(offset, DAY, b"k", b"v")], offset, DAY)[:-2], 1, base_offset=offset)


ODD = {
    "records are not valid": invalid(6),
    "count is too high": ref.batch(
        ref.records([Row(6, DAY, b"k", b"v")], 6, DAY), 2, base_offset=6, last_offset_delta=1
    ),
    "bytes are left over": ref.batch(
        ref.records([Row(6, DAY, b"k", b"v")], 6, DAY) + b"\0", 1, base_offset=6
    ),
    "offsets go back": ref.batch(
        ref.records([Row(7, DAY, b"k", b"v"), Row(6, DAY, b"k", b"v")], 6, DAY),
        2,
        base_offset=6,
        last_offset_delta=1,
    ),
}


@pytest.mark.parametrize("name", ODD)
def test_combine_when_records_are_not_valid_then_their_batch_goes_on_as_it_is(name):
    """As without a combiner: the records of such a batch are not looked at."""
    runs, _ = combined(small(0), small(3), ODD[name], small(8), small(11))
    assert shapes(runs) == [
        ("combined", 2, [6]),
        ("raw", 1, runs[1].run.index["count"].tolist()),
        ("combined", 2, [6]),
    ]
    assert bytes(runs[1].run.batch(0)) == ODD[name]


def test_combine_when_a_payload_is_no_payload_then_its_batch_goes_on_as_it_is():
    bad = ref.batch(b"nonsense", 1, base_offset=6, attributes=ref.LZ4)
    runs, _ = combined(
        *(small(n, codec=ref.LZ4) for n in (0, 3)), bad, *(small(n, codec=ref.LZ4) for n in (7, 10))
    )
    assert [one.way for one in runs] == ["combined", "raw", "combined"]
    assert bytes(runs[1].run.batch(0)) == bad


def test_combine_when_a_batch_decompresses_to_too_much_then_it_goes_on_as_it_is():
    bomb = ref.batch_of([Row(6, DAY, None, bytes(300_000))], codec=ref.ZSTD)
    batches = [small(0, codec=ref.ZSTD), small(3, codec=ref.ZSTD), bomb]
    assert len(bomb) < BATCH_SIZE // SMALL_FRACTIONS[ref.ZSTD]
    runs, _ = combined(*batches)
    assert [one.way for one in runs] == ["combined", "raw"]


def test_combine_when_a_crc_is_wrong_then_what_stands_before_it_goes_on_and_the_error_is_raised():
    bad = bytearray(small(6))
    bad[-1] ^= 1
    forwarder = BatchForwarder(combiner=BatchCombiner(BATCH_SIZE))
    forwarding = forwarder.forward(run_of(small(0), small(3), bytes(bad), small(9)))
    assert shapes([next(forwarding)]) == [("combined", 2, [6])]
    with pytest.raises(kf.CorruptRecordError):
        next(forwarding)


# The kernel


def test_combine_when_memory_is_reused_then_a_batch_is_valid_until_the_next_one():
    batches = [small(n, 1, size=1000) for n in range(100)]
    combiner = BatchCombiner(32 * 1024, reuses_memory=True)
    forwarding = BatchForwarder(combiner=combiner).forward(run_of(*batches))
    rows = [row for one in forwarding for row in rows_in([one])]
    assert data_of(rows) == data_of([row for batch in batches for row in rows_of(batch)])
    first, second, *_ = BatchForwarder(combiner=combiner).forward(run_of(*batches))
    assert bytes(first.run.buffer) == bytes(second.run.buffer)


def test_gather_when_batches_are_not_of_its_kind_then_value_error():
    kernel = record_combiner(1 << 20)
    for wrong in (ref.messages(1, ROWS[:1]), end_marker(3, commit=True), small(3, codec=ref.GZIP)):
        with pytest.raises(ValueError, match="expected records in format v2 with codec 0"):
            kernel.gather(run_of(small(0), wrong), np.arange(2), 0, 1000)
    with pytest.raises(IndexError):
        kernel.gather(run_of(small(0)), np.array([1]), 0, 1000)
    with pytest.raises(IndexError):
        kernel.gather(run_of(small(0)), np.arange(1), 2, 1000)
    with pytest.raises(ValueError, match="max_size"):
        kernel.gather(run_of(small(0)), np.arange(1), 0, 60)


def test_build_when_nothing_was_gathered_then_value_error():
    kernel = record_combiner(1 << 20)
    with pytest.raises(ValueError, match="expected records, found none"):
        kernel.build(0)
    assert kernel.gather(run_of(small(0)), np.arange(1), 0, 61) == 0
    assert len(kernel) == 0


def test_build_when_the_codec_calls_back_then_runtime_error():
    kernel = record_combiner(1 << 20)
    run = run_of(small(0), small(3))
    kernel.gather(run, np.arange(2), 0, 1000)
    with pytest.raises(RuntimeError, match="one thing at a time"):
        kernel.build(3, lambda records: kernel.gather(run, np.arange(2), 0, 1000))
    assert kernel.gather(run, np.arange(2), 0, 1000) == 2


# Any batches

KEYS = st.none() | st.binary(max_size=5)
VALUES = st.none() | st.binary(max_size=40) | st.binary(min_size=120, max_size=140)
HEADERS = st.lists(st.tuples(st.binary(max_size=3), KEYS), max_size=3).map(tuple)
TIMES = st.sampled_from([DAY, DAY + 1, DAY - 70_000, 0, -1, 2**62]) | st.integers(-1, 2**62)
FIELDS = st.sampled_from(
    [
        {},
        {"producer": (7, 0, 3)},
        {"producer": (7, 0, 3), **TRANSACTIONAL},
        {"producer": (8, 0, 3), **TRANSACTIONAL},
        LOG_APPEND,
        {"attributes": ref.DELETE_HORIZON, "base_timestamp": DAY},
    ]
)


@st.composite
def logs(draw):
    """Batches with ascending offsets, of any codec, with gaps and markers in between."""
    offset, batches = draw(st.sampled_from([0, 100, 2**40])), []
    codecs = draw(st.lists(st.sampled_from(sorted(kf.Codec)), min_size=1, max_size=2))
    for _ in range(draw(st.integers(0, 8))):
        rows = []
        for _ in range(draw(st.integers(1, 4))):
            rows.append(Row(offset, draw(TIMES), draw(KEYS), draw(VALUES), draw(HEADERS)))
            offset += draw(st.sampled_from([1, 1, 1, 2, 1000]))
        batches.append(ref.batch_of(rows, codec=draw(st.sampled_from(codecs)), **draw(FIELDS)))
        if draw(st.booleans()):
            batches.append(end_marker(offset, commit=True))
            offset += 1
    return batches


@settings(max_examples=150, deadline=None)
@given(
    logs(),
    st.booleans(),
    st.sampled_from([None, 400, 1000]),
    st.sampled_from([1024, BATCH_SIZE]),
    st.sampled_from(["read_committed", "read_uncommitted"]),
)
def test_combine_when_any_batches_then_the_records_are_those_of_the_reference(
    batches, is_log_append_time, limit, batch_size, isolation
):
    rows = [row for batch in batches for row in rows_of(batch)]
    control = {
        batch.base_offset for batch in kf.MemoryRecords(b"".join(batches)).batches() if batch.is_control
    }
    rows = [row for row in rows if row.offset not in control]
    forwarder = BatchForwarder(
        max_message_bytes=limit,
        is_log_append_time=is_log_append_time,
        combiner=BatchCombiner(batch_size, isolation=isolation),
    )
    runs = list(forwarder.forward(run_of(*batches)))
    found = rows_in(runs)
    assert [(row.key, row.value, row.headers) for row in found] == [
        (row.key, row.value, row.headers) for row in rows
    ]
    if not is_log_append_time:
        assert [row.timestamp for row in found] == [row.timestamp for row in rows]
    assert (source_offsets(runs) if runs else []) == [row.offset for row in rows]
    for one in runs:
        one.run.ensure_valid()
        for number in range(len(one.run)):
            assert not kf.check_produce(kf.RecordBatch(one.run, number), max_message_bytes=limit)
        if one.way == "combined":
            assert int(one.run.index["size"][0]) <= batch_size
    assert sum(one.source_batches for one in runs if one.way != "opened") <= len(batches)
    assert all(first.source_ranges(0)[0] < second.source_ranges(0)[0] for first, second in pairwise(runs))
