"""Trimming a batch fetched from its middle (KIP-712), splitting one that is too large (KIP-126)."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kafkafmt as kf
import reference as ref
from records.samples import DAY, GAPS, ROWS, SAMPLES, WITH_HEADERS, as_rows
from reference import Row


def only_batch(data: bytes) -> kf.RecordBatch:
    (batch,) = kf.MemoryRecords(data).batches()
    return batch


# Trim

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
        if len(expected) == len(rows):
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
    with pytest.raises(ValueError, match="past the last offset"):
        only_batch(SAMPLES["v2 none"]).trim(13)


def test_trim_when_damaged_then_corrupt():
    data = bytearray(SAMPLES["v2 none"])
    data[-1] ^= 1
    with pytest.raises(kf.CorruptRecordError):
        only_batch(data).trim(11)


# Split


def batch_to_split(count: int, *, magic: int = 2, codec: int = 0, **options) -> kf.RecordBatch:
    builder = kf.RecordBatchBuilder(magic, kf.Codec(codec), **options)
    for i in range(count):
        headers = [("h", b"%d" % i), ("n", None)] if magic == 2 else []
        builder.append(DAY + i, b"key%d" % i, bytes([i % 256]) * 100, headers)
    return only_batch(builder.build())


@pytest.mark.parametrize(("magic", "codec"), [(2, 0), (2, 1), (2, 2), (2, 3), (2, 4), (1, 1), (1, 3), (0, 2)])
def test_split_when_too_large_then_parts_keep_magic_codec_headers_and_timestamps(magic, codec):
    """Case 31: a split keeps magic, codec, headers and timestamps."""
    batch = batch_to_split(20, magic=magic, codec=codec)
    parts = kf.split_batch(batch, 500)
    assert len(parts) > 1
    assert {(part.magic, part.codec) for part in parts} == {(magic, kf.Codec(codec))}
    kept = [(r.timestamp, r.key, r.value, r.headers) for part in parts for r in part]
    assert kept == [(r.timestamp, r.key, r.value, r.headers) for r in batch]
    assert all(part.is_valid() for part in parts)
    assert [part.base_offset for part in parts] == [0] * len(parts)


@pytest.mark.parametrize("codec", range(5))
@pytest.mark.parametrize("base_sequence", [0, 100, 2**31 - 5, 2**31 - 1])
@pytest.mark.parametrize("is_transactional", [False, True])
def test_split_when_idempotent_then_child_sequences_follow_one_another_and_wrap(
    is_transactional, base_sequence, codec
):
    """Case 31: producer id, epoch and the transactional flag are kept; sequences are S, S + n1, ... and wrap."""
    batch = batch_to_split(
        20,
        codec=codec,
        producer_id=2**40,
        producer_epoch=5,
        base_sequence=base_sequence,
        is_transactional=is_transactional,
    )
    expected = base_sequence
    for part in kf.split_batch(batch, 500):
        assert part.base_sequence == expected
        assert (part.producer_id, part.producer_epoch) == (2**40, 5)
        assert part.is_transactional == is_transactional
        expected = (expected + part.count) % 2**31
    assert expected == (base_sequence + 20) % 2**31


def test_split_when_not_idempotent_then_no_sequences():
    assert {part.base_sequence for part in kf.split_batch(batch_to_split(20), 500)} == {-1}


@pytest.mark.parametrize("codec", range(5))
def test_split_when_there_is_one_record_then_record_too_large(codec):
    """Case 32: a batch of one record cannot be split."""
    batch = batch_to_split(1, codec=codec)
    with pytest.raises(kf.RecordTooLargeError) as raised:
        kf.split_batch(batch, 10)
    assert (raised.value.base_offset, raised.value.last_offset, raised.value.position) == (0, 0, 0)


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


def test_split_when_headers_are_not_utf8_then_kept():
    batch = only_batch(ref.batch_of([*WITH_HEADERS, Row(2, DAY, None, None, ((b"\xc3", None),))]))
    parts = kf.split_batch(batch, 1)
    assert [row.headers for part in parts for row in as_rows(part)] == [
        *(row.headers for row in WITH_HEADERS),
        ((b"\xc3", None),),
    ]
