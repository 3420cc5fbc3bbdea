"""Splitting a batch that is too large (KIP-126): where Kafka splits it, and into parts that were measured."""

from __future__ import annotations

import itertools
import math
import pickle
import random
from collections.abc import Iterable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kafkafmt as kf
import reference as ref
from kafkafmt.build.split import measured_parts
from records.samples import DAY, GAPS, SAMPLES, as_rows, empty_batch, end_marker
from reference import Row

KINDS = [(2, 0), (2, 1), (2, 2), (2, 3), (2, 4), (1, 1), (1, 2), (1, 3), (0, 1), (0, 2), (0, 3)]
KEPT = [
    *("magic", "codec", "timestamp_type", "partition_leader_epoch", "delete_horizon_ms"),
    *("producer_id", "producer_epoch", "is_transactional", "is_control"),
]
MANY = st.lists(
    st.tuples(
        st.sampled_from([-1, 0, DAY, DAY + 7, 2**40]),
        st.none() | st.binary(max_size=20),
        st.none() | st.binary(max_size=60) | st.integers(0, 3000).map(bytes),
        st.lists(st.tuples(st.binary(max_size=5), st.none() | st.binary(max_size=9)), max_size=3),
    ),
    min_size=1,
    max_size=40,
)


def only_batch(data: bytes) -> kf.RecordBatch:
    (batch,) = kf.MemoryRecords(data).batches()
    return batch


def batch_to_split(count: int, *, magic: int = 2, codec: int = 0, **options) -> kf.RecordBatch:
    builder = kf.RecordBatchBuilder(magic, kf.Codec(codec), **options)
    for i in range(count):
        headers = [("h", b"%d" % i), ("n", None)] if magic == 2 else []
        builder.append(DAY + i, b"key%d" % i, bytes([i % 256]) * 100, headers)
    return only_batch(builder.build())


def batch_of_values(values: Iterable[bytes], codec: int, **options) -> kf.RecordBatch:
    builder = kf.RecordBatchBuilder(codec=kf.Codec(codec), **options)
    for i, value in enumerate(values):
        builder.append(DAY + i, b"%d" % i, value)
    return only_batch(builder.build())


def text(random: random.Random, size: int) -> bytes:
    words = [b"clicks", b"user", b"page", b"home", b"session", b"2023-11-14", b"ms", b"true"]
    return b" ".join(random.choice(words) + b"%d" % random.randrange(1000) for _ in range(size // 8))


def assert_parts_are(
    batch: kf.RecordBatch, parts: Sequence[kf.RecordBatch], numbered: Sequence[kf.RecordBatch] | None = None
) -> None:
    """Concatenated they are the batch: every field but offsets, which begin at 0 in each.

    numbered: the parts whose records sequence numbers are given to, where these are not all.
    """
    rows = [row for part in parts for row in as_rows(part)]
    assert [row[1:6] for row in rows] == [row[1:6] for row in as_rows(batch)]
    sequence = batch.base_sequence
    for part in parts:
        assert part.is_valid()
        assert ref.read_rows(bytes(part)) == as_rows(part)
        assert {name: getattr(part, name) for name in KEPT} == {name: getattr(batch, name) for name in KEPT}
        assert [row.offset for row in as_rows(part)] == list(range(part.count))
        assert part.base_sequence == sequence
        if sequence >= 0 and (numbered is None or part in numbered):
            sequence = (sequence + part.count) % 2**31


# As Kafka splits


@pytest.mark.parametrize(("magic", "codec"), KINDS)
def test_split_when_too_large_then_parts_keep_magic_codec_headers_and_timestamps(magic, codec):
    """Case 31: a split keeps magic, codec, headers and timestamps."""
    batch = batch_to_split(20, magic=magic, codec=codec)
    parts = kf.split_batch(batch, 500)
    assert len(parts) > 1
    assert_parts_are(batch, parts)


@pytest.mark.parametrize("codec", range(5))
@pytest.mark.parametrize("base_sequence", [0, 100, 2**31 - 5, 2**31 - 1])
@pytest.mark.parametrize("is_transactional", [False, True])
def test_split_when_idempotent_then_child_sequences_follow_one_another_and_wrap(
    is_transactional, base_sequence, codec
):
    """Case 31: producer id, epoch and the transactional flag are kept; sequences are S, S + n1, ... and wrap."""
    state = {"producer_id": 2**40, "producer_epoch": 5, "base_sequence": base_sequence}
    batch = batch_to_split(20, codec=codec, is_transactional=is_transactional, **state)
    for parts in (kf.split_batch(batch, 500), kf.split_to_fit(batch, batch.size_in_bytes // 2)):
        assert len(parts) > 1
        expected = base_sequence
        for part in parts:
            assert part.base_sequence == expected
            assert (part.producer_id, part.producer_epoch) == (2**40, 5)
            assert part.is_transactional == is_transactional
            expected = (expected + part.count) % 2**31
        assert expected == (base_sequence + 20) % 2**31


def test_split_when_not_idempotent_then_no_sequences():
    assert {part.base_sequence for part in kf.split_batch(batch_to_split(20), 500)} == {-1}


@pytest.mark.parametrize("codec", range(5))
@pytest.mark.parametrize("count", [0, 1])
def test_split_when_there_is_no_second_record_then_record_too_large(count, codec):
    """Case 32: a batch of one record cannot be split."""
    batch = batch_to_split(count, codec=codec, last_offset=4)
    with pytest.raises(
        kf.RecordTooLargeError, match=f"expected two records or more, found {count}"
    ) as raised:
        kf.split_batch(batch, 10)
    assert (raised.value.base_offset, raised.value.last_offset, raised.value.position) == (0, 4, 0)
    assert (raised.value.records, raised.value.parts) == ((), ())


@pytest.mark.parametrize("size", [1, 61, 200, 1000, 10**6])
def test_split_when_repeated_with_a_smaller_target_then_it_ends(size):
    """Case 33: a split that still is too large is split again; it ends at one record a batch."""
    todo, done = [batch_to_split(30)], []
    while todo:
        batch = todo.pop()
        if batch.count == 1:
            done.append(batch)
        else:
            parts = kf.split_batch(batch, min(size, batch.size_in_bytes // 2))
            assert len(parts) > 1
            todo += parts
    assert sorted(r.key for batch in done for r in batch) == sorted(b"key%d" % i for i in range(30))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 400), min_size=2, max_size=30), st.integers(1, 2000), st.integers(0, 4))
def test_split_when_any_sizes_then_every_uncompressed_part_fits(sizes, limit, codec):
    builder = kf.RecordBatchBuilder(codec=kf.Codec(codec))
    for i, size in enumerate(sizes):
        builder.append(DAY + i, None, bytes(size))
    batch = only_batch(builder.build())
    parts = kf.split_batch(batch, limit)
    assert [len(r.value) for part in parts for r in part] == sizes
    if codec == 0:
        # As Kafka: the limit is no less than what the first record of a part may take at the most.
        overhead = 61 + 21 + 8
        assert all(part.size_in_bytes <= max(limit, overhead + len(next(iter(part)).value)) for part in parts)


def test_split_when_a_better_level_is_asked_for_then_the_parts_are_smaller():
    values = [text(random.Random(i), 400) for i in range(100)]
    batch = batch_of_values(values, kf.Codec.ZSTD)
    sizes = [sum(map(len, map(bytes, kf.split_batch(batch, 9000, level=level)))) for level in (-7, 12)]
    assert sizes[0] > sizes[1]
    sizes = [sum(map(len, map(bytes, kf.split_to_fit(batch, 3000, level=level)))) for level in (-7, 12)]
    assert sizes[0] > sizes[1]


@pytest.mark.parametrize("split", [kf.split_batch, kf.split_to_fit])
def test_split_when_the_codec_has_no_such_level_then_value_error(split):
    with pytest.raises(ValueError, match="gzip level must be 1 to 9, not 10"):
        split(batch_to_split(20, codec=kf.Codec.GZIP), 100, level=10)
    with pytest.raises(ValueError, match="none has no compression levels"):
        split(batch_to_split(20), 100, level=1)


# Both


def split_measured(batch: kf.RecordBatch, size: int) -> list[kf.RecordBatch]:
    """With the records that are too large: what each function does beyond that has tests of its own."""
    return [part.batch for part in measured_parts(batch, size)]


BOTH = pytest.mark.parametrize("split", [kf.split_batch, split_measured])


def assert_both_split(batch: kf.RecordBatch, size: int) -> None:
    assert_parts_are(batch, kf.split_batch(batch, size))
    parts = list(measured_parts(batch, size))
    if parts[0].batch is not batch:
        assert_parts_are(batch, [part.batch for part in parts], [part.batch for part in parts if part.fits])
    assert all(part.batch.size_in_bytes <= size if part.fits else part.batch.count == 1 for part in parts)


@settings(max_examples=200, deadline=None)
@given(
    rows=MANY,
    codec=st.integers(0, 4),
    attributes=st.sampled_from([0, ref.TIMESTAMP_TYPE, ref.DELETE_HORIZON, ref.TRANSACTIONAL]),
    base_sequence=st.sampled_from([-1, 0, 7, 2**31 - 3]),
    size=st.integers(1, 4000),
)
def test_split_when_any_v2_batch_then_the_parts_are_the_batch(rows, codec, attributes, base_sequence, size):
    fields = {"base_offset": 11, "leader_epoch": 3}
    if base_sequence >= 0 or attributes == ref.TRANSACTIONAL:
        fields["producer"] = (2**40, 6, max(base_sequence, 0))
    if attributes == ref.DELETE_HORIZON:
        fields["base_timestamp"] = DAY + 10**6
    rows = [Row(11 + i, *row) for i, row in enumerate([*rows, rows[0]])]
    assert_both_split(only_batch(ref.batch_of(rows, codec=codec, attributes=attributes, **fields)), size)


@settings(max_examples=100, deadline=None)
@given(
    rows=MANY,
    kind=st.sampled_from([kind for kind in KINDS if kind[0] < 2]),
    log_append=st.booleans(),
    size=st.integers(1, 4000),
)
def test_split_when_any_wrapper_then_the_parts_are_the_batch(rows, kind, log_append, size):
    magic, codec = kind
    rows = [Row(7 + i, row[0] if magic else -1, row[1], row[2]) for i, row in enumerate([*rows, rows[0]])]
    attributes = ref.TIMESTAMP_TYPE if log_append and magic else 0
    assert_both_split(only_batch(ref.wrapper(magic, codec, rows, attributes=attributes)), size)


@BOTH
def test_split_when_offsets_have_gaps_then_sequences_count_the_records(split):
    batch = only_batch(ref.batch_of(GAPS, base_offset=1, last_offset_delta=9, producer=(7, 1, 2**31 - 2)))
    parts = split(batch, 70)
    sequences = [row.sequence for part in parts for row in as_rows(part)]
    assert len(parts) > 1
    assert sequences == [2**31 - 2, 2**31 - 1, 0, 1]
    assert [row[1:5] for part in parts for row in as_rows(part)] == [row[1:5] for row in GAPS]


@BOTH
def test_split_when_control_batch_then_the_parts_are(split):
    key, value = b"\0\0\0\2", b"\0\0\0\0\0\1"
    rows = [Row(i, DAY, key, value) for i in range(3)]
    batch = only_batch(ref.batch_of(rows, attributes=ref.CONTROL))
    parts = split(batch, 80)
    assert len(parts) > 1
    assert_parts_are(batch, parts)


@BOTH
@pytest.mark.parametrize("codec", range(5))
def test_split_when_damaged_then_the_error_of_reading_it_with_its_position(split, codec):
    before = SAMPLES["v2 one record"]
    data = bytearray(before + bytes(batch_to_split(20, codec=codec)))
    data[-1] ^= 1
    batch = list(kf.MemoryRecords(data).batches())[1]
    with pytest.raises(kf.CorruptRecordError) as raised:
        split(batch, 100)
    assert (raised.value.position, raised.value.next_position) == (len(before), len(data))


@BOTH
def test_split_when_the_codec_does_not_exist_then_unsupported(split):
    batch = only_batch(ref.batch(bytes(100), 2, attributes=5))
    with pytest.raises(kf.UnsupportedCompressionTypeError) as raised:
        split(batch, 100)
    assert raised.value.position == 0


@BOTH
@pytest.mark.parametrize(
    ("rows", "fields", "what"),
    [
        ([Row(0, -5, None, b"v")] * 2, {"base_timestamp": 0}, "expected -1 .none. or more, found -5"),
        ([Row(0, DAY, None, b"v")] * 2, {"attributes": ref.TRANSACTIONAL}, "needs a producer_id"),
    ],
    ids=["timestamp", "transactional"],
)
def test_split_when_it_says_what_cannot_be_written_again_then_invalid_record_with_its_position(
    split, rows, fields, what
):
    batch = only_batch(ref.batch_of(rows, **fields))
    with pytest.raises(kf.InvalidRecordError, match=what) as raised:
        split(batch, 65)
    assert raised.value.position == 0


# To fit


@pytest.mark.parametrize(("magic", "codec"), KINDS)
@pytest.mark.parametrize("share", [1.0, 0.7, 0.4, 0.1])
def test_split_to_fit_when_records_fit_then_parts_of_that_size_at_the_most(share, magic, codec):
    builder = kf.RecordBatchBuilder(magic, kf.Codec(codec))
    for i in range(200):
        builder.append(DAY + i, None, text(random.Random(i), 100 + i))
    batch = only_batch(builder.build())
    size = int(batch.size_in_bytes * share)
    parts = kf.split_to_fit(batch, size)
    assert max(part.size_in_bytes for part in parts) <= size
    assert_parts_are(batch, parts)
    assert (parts[0] is batch) == (share == 1.0)


CONTENTS = {
    "alike": lambda random: [text(random, 150) for _ in range(1500)],
    "incompressible tail": lambda random: [
        text(random, 150) if i < 800 else random.randbytes(150) for i in range(1500)
    ],
    "incompressible head": lambda random: [
        text(random, 150) if i > 700 else random.randbytes(150) for i in range(1500)
    ],
    "zeros first": lambda random: [bytes(150) if i < 1000 else random.randbytes(150) for i in range(1500)],
    "in turns": lambda random: [
        text(random, 150) if i // 60 % 2 else random.randbytes(150) for i in range(1500)
    ],
}


@pytest.mark.parametrize("codec", range(5))
@pytest.mark.parametrize("content", CONTENTS)
@pytest.mark.parametrize("parts_wanted", [1.1, 1.9, 5.5])
def test_split_to_fit_when_records_are_small_then_full_parts_and_hardly_more_than_it_takes(
    parts_wanted, content, codec
):
    batch = batch_of_values(CONTENTS[content](random.Random(7)), codec)
    size = int(batch.size_in_bytes / parts_wanted)
    parts = kf.split_to_fit(batch, size)
    fullness = [part.size_in_bytes / size for part in parts]
    assert max(fullness) <= 1
    assert min(fullness[:-1]) > 0.9
    assert len(parts) <= math.ceil(sum(fullness)) + 1
    assert_parts_are(batch, parts)


@pytest.mark.parametrize("codec", [kf.Codec.GZIP, kf.Codec.LZ4, kf.Codec.ZSTD])
def test_split_to_fit_when_a_large_record_shrinks_to_nothing_then_the_part_does_not_end_in_front_of_it(codec):
    random_ = random.Random(5)
    values = [bytes(100_000) if random_.random() < 0.02 else random_.randbytes(200) for _ in range(1500)]
    parts = kf.split_to_fit(batch_of_values(values, codec), 20_000)
    fullness = [part.size_in_bytes / 20_000 for part in parts]
    assert min(fullness[:-1]) > 0.9
    assert len(parts) == math.ceil(sum(fullness))


@pytest.mark.parametrize("codec", range(1, 5))
def test_split_to_fit_when_records_are_alike_then_few_compressions_a_part(codec, monkeypatch):
    batch = batch_of_values(CONTENTS["alike"](random.Random(7)), codec)
    builds = []
    build = kf.RecordBatchBuilder.build
    monkeypatch.setattr(kf.RecordBatchBuilder, "build", lambda self: builds.append(1) or build(self))
    parts = kf.split_to_fit(batch, batch.size_in_bytes // 5)
    assert len(builds) <= 3 * len(parts)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 400), min_size=1, max_size=40), st.integers(70, 3000))
def test_split_to_fit_when_uncompressed_then_no_part_has_room_for_one_more_record(sizes, limit):
    batch = batch_of_values(map(bytes, sizes), 0)
    parts = [part.batch for part in measured_parts(batch, limit)]
    for part, following in itertools.pairwise(parts):
        record = next(iter(following))
        with_one_more = kf.RecordBatchBuilder()
        for row in (*part, record):
            with_one_more.append(row.timestamp, row.key, row.value)
        assert with_one_more.estimated_size > limit


@pytest.mark.parametrize("codec", range(5))
def test_split_to_fit_when_some_records_are_too_large_then_named_and_the_others_are_kept(codec):
    values = [random.Random(i).randbytes(3000 if i in (0, 7, 8, 19) else 100) for i in range(20)]
    state = {"producer_id": 9, "producer_epoch": 1, "base_sequence": 2**31 - 4, "is_transactional": True}
    batch = batch_of_values(values, codec, base_offset=50, **state)
    with pytest.raises(kf.RecordTooLargeError, match="expected each record to fit into 1000 bytes") as raised:
        kf.split_to_fit(batch, 1000)
    error = raised.value
    assert [record[:2] for record in error.records] == [(0, 50), (7, 57), (8, 58), (19, 69)]
    assert all(3000 < record.size_in_bytes < 3200 for record in error.records)
    assert f"record 7 at offset 57 takes {error.records[1].size_in_bytes}" in str(error)
    assert (error.position, error.base_offset, error.last_offset) == (0, 50, 69)
    others = [value for i, value in enumerate(values) if i not in (0, 7, 8, 19)]
    assert [record.value for part in error.parts for record in part] == others
    assert max(part.size_in_bytes for part in error.parts) <= 1000
    sequences = [row.sequence for part in error.parts for row in as_rows(part)]
    assert sequences == [(2**31 - 4 + i) % 2**31 for i in range(16)]
    copy = pickle.loads(pickle.dumps(error))
    assert copy.records == error.records
    assert [bytes(part) for part in copy.parts] == [bytes(part) for part in error.parts]


@pytest.mark.parametrize("codec", range(5))
@pytest.mark.parametrize("count", [1, 12])
@pytest.mark.parametrize("limit", [1, 10, 61, 62])
def test_split_to_fit_when_all_records_are_too_large_then_no_parts_and_the_first_of_them_named(
    limit, count, codec
):
    with pytest.raises(kf.RecordTooLargeError) as raised:
        kf.split_to_fit(batch_to_split(count, codec=codec), limit)
    assert [record.batch_index for record in raised.value.records] == list(range(count))
    assert raised.value.parts == []
    assert str(raised.value).count("at offset") == min(count, 5)
    assert ("and 7 more" in str(raised.value)) == (count == 12)


@pytest.mark.parametrize("codec", range(5))
def test_measured_parts_when_a_record_is_too_large_then_it_stands_alone_in_its_place(codec):
    values = [random.Random(i).randbytes(3000 if i in (5, 6) else 100) for i in range(20)]
    batch = batch_of_values(values, codec, base_offset=50)
    parts = list(measured_parts(batch, 1000))
    first = 0
    for part in parts:
        assert (part.first, part.offset) == (first, 50 + first)
        assert part.fits == (part.batch.size_in_bytes <= 1000)
        first += part.batch.count
    assert first == 20
    assert [part.first for part in parts if not part.fits] == [5, 6]
    assert_parts_are(batch, [part.batch for part in parts])
    assert [record.value for part in parts for record in part.batch] == values


def test_measured_parts_when_not_asked_for_then_not_made(monkeypatch):
    parts = measured_parts(batch_to_split(2000, codec=kf.Codec.LZ4), 1000)
    next(parts)
    monkeypatch.setattr(kf.RecordBatchBuilder, "build", lambda self: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        next(parts)


@pytest.mark.parametrize("size", [0, -1])
def test_split_to_fit_when_the_size_is_below_1_then_value_error(size):
    with pytest.raises(ValueError, match=f"max_size: expected 1 byte or more, found {size}"):
        kf.split_to_fit(batch_to_split(20), size)


def test_split_to_fit_when_there_is_one_record_and_it_fits_then_the_batch_itself():
    for data in (SAMPLES["v1"], SAMPLES["v0"], SAMPLES["v2 one record"], end_marker(4, commit=True)):
        batch = next(iter(kf.MemoryRecords(data).batches()))
        assert kf.split_to_fit(batch, batch.size_in_bytes) == [batch]


def test_split_to_fit_when_a_plain_message_is_too_large_then_named():
    batch = next(iter(kf.MemoryRecords(SAMPLES["v1"]).batches()))
    with pytest.raises(kf.RecordTooLargeError) as raised:
        kf.split_to_fit(batch, batch.size_in_bytes - 1)
    assert raised.value.records == [(0, 10, batch.size_in_bytes)]


def test_split_to_fit_when_there_are_no_records_then_the_batch_or_record_too_large():
    batch = only_batch(empty_batch())
    assert kf.split_to_fit(batch, 61) == [batch]
    with pytest.raises(kf.RecordTooLargeError, match="expected 60 bytes at most, found 61 without records"):
        kf.split_to_fit(batch, 60)


def test_split_to_fit_when_it_decompresses_to_more_than_the_limit_then_decompression_limit():
    data = bytes(batch_of_values([bytes(10**6)] * 5, kf.Codec.ZSTD))
    (batch,) = kf.MemoryRecords(data, max_decompressed_bytes=10**6).batches()
    with pytest.raises(kf.DecompressionLimitError):
        kf.split_to_fit(batch, 200)
