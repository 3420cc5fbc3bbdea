"""Message formats v0, v1 and v2 as they are read: offsets, timestamps, codecs, headers, sequences, gaps."""

from __future__ import annotations

import gzip
import struct

import lz4.frame
import pytest
import zstandard
from cramjam import snappy

import kafkafmt as kf
import reference as ref
from records.samples import (
    CODEC_NAMES,
    DAY,
    GAPS,
    ROWS,
    SAMPLES,
    WITH_HEADERS,
    as_rows,
    end_marker,
    rows_of,
)
from reference import Row


def only_batch(data: bytes) -> kf.RecordBatch:
    (batch,) = kf.MemoryRecords(data).batches()
    return batch


# The layouts


@pytest.mark.parametrize("kind", SAMPLES)
def test_read_when_any_kind_then_what_the_reference_reads(kind):
    assert rows_of(SAMPLES[kind]) == ref.read_rows(SAMPLES[kind])


@pytest.mark.parametrize("kind", SAMPLES)
def test_batch_header_when_any_kind_then_every_field_as_the_reference_reads_it(kind):
    for batch, expected in zip(
        kf.MemoryRecords(SAMPLES[kind]).batches(), ref.read(SAMPLES[kind]), strict=True
    ):
        rows = expected.rows()
        assert bytes(batch.buffer) == expected.data
        assert (batch.magic, batch.crc, batch.is_valid()) == (expected.magic, expected.crc, True)
        assert (batch.codec, batch.size_in_bytes) == (expected.codec, len(expected.data))
        assert (batch.last_offset, batch.next_offset) == (expected.last_offset, expected.last_offset + 1)
        assert batch.count == len(rows)
        if expected.magic == 2:
            for name in ["base_offset", "max_timestamp", "producer_id", "producer_epoch", "base_sequence"]:
                assert getattr(batch, name) == expected.fields[name]
            assert batch.base_timestamp == expected.fields["base_timestamp"]
            assert batch.partition_leader_epoch == expected.fields["partition_leader_epoch"]
            assert batch.is_control == bool(expected.attributes & ref.CONTROL)
            assert batch.is_transactional == bool(expected.attributes & ref.TRANSACTIONAL)
        else:
            assert batch.base_offset == rows[0].offset
            assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == (-1, -1, -1)
            assert (batch.is_control, batch.is_transactional) == (False, False)
            assert (batch.last_sequence, batch.partition_leader_epoch) == (-1, -1)


def test_index_when_every_kind_in_one_buffer_then_a_row_a_batch_with_its_position():
    data = b"".join(SAMPLES.values())
    records = kf.MemoryRecords(data)
    index = records.index()
    batches = list(records.batches())
    assert len(index) == len(batches)
    assert index["position"].tolist() == [batch.position for batch in batches]
    assert index["size"].sum() == len(data)
    for row, batch in zip(index, batches, strict=True):
        assert bytes(batch.buffer) == data[row["position"] : row["position"] + row["size"]]
        assert (row["magic"], row["crc"], row["codec"]) == (batch.magic, batch.crc, batch.codec)
        if row["count"] >= 0:
            assert (row["base_offset"], row["count"]) == (batch.base_offset, batch.count)


def test_wrapper_when_shallow_then_base_offset_and_count_only_after_decompression():
    records = kf.MemoryRecords(SAMPLES["v1 gzip"])
    assert (records.index()["base_offset"][0], records.index()["count"][0]) == (-1, -1)
    batch = only_batch(SAMPLES["v1 gzip"])
    assert (batch.base_offset, batch.count, batch.last_offset) == (10, 3, 12)


# Case 11: inner offsets


@pytest.mark.parametrize("codec", [ref.GZIP, ref.SNAPPY, ref.LZ4])
def test_v1_wrapper_when_offsets_have_gaps_then_base_is_wrapper_offset_minus_last_inner_offset(codec):
    """Case 11: v1 wrapper base is wrapper offset minus last inner offset, not minus the count."""
    data = ref.wrapper(1, codec, GAPS)
    assert struct.unpack_from(">q", data)[0] == 8
    inner = ref.decompress(codec, ref._message_at(data)[0].value)
    assert [ref._message_at(inner)[0].offset] == [0]
    assert [row.offset for row in rows_of(data)] == [3, 5, 7, 8]
    assert only_batch(data).base_offset == 3


@pytest.mark.parametrize("codec", [ref.GZIP, ref.SNAPPY, ref.LZ4])
def test_v0_wrapper_when_offsets_have_gaps_then_inner_offsets_are_absolute(codec):
    """Case 11: v0 inner offsets are absolute."""
    data = ref.wrapper(0, codec, GAPS)
    assert [row.offset for row in rows_of(data)] == [3, 5, 7, 8]
    assert only_batch(data).base_offset == 3


@pytest.mark.parametrize(
    ("inner", "offset", "expected"),
    [
        ([0, 1, 2], 102, [100, 101, 102]),
        ([5, 7, 9], 109, [105, 107, 109]),  # compacted: the first inner offset is not 0
        ([0, 0, 0], 50, [50, 50, 50]),
        ([0, 1, 2], 0, [0, 1, 2]),  # librdkafka left the wrapper's offset at 0
        ([7], 7, [7]),
    ],
)
def test_v1_wrapper_when_inner_offsets_are_not_consecutive_then_counted_from_the_last(
    inner, offset, expected
):
    """Case 11: inner offsets need not be consecutive."""
    messages = b"".join(ref.message(1, each, DAY, None, b"v") for each in inner)
    data = ref.wrapper(1, ref.GZIP, ROWS, inner=messages, offset=offset)
    assert [row.offset for row in rows_of(data)] == expected


# Case 12, 13, 14: timestamps


@pytest.mark.parametrize("kind", ["v2 log append", "v1 wrapper log append"])
def test_log_append_time_when_read_then_every_record_has_the_max_timestamp(kind):
    """Case 12: LogAppendTime gives every record the batch's max timestamp."""
    batch = only_batch(SAMPLES[kind])
    assert batch.timestamp_type == kf.TimestampType.LOG_APPEND_TIME
    assert batch.max_timestamp == DAY + 99
    for record in batch:
        assert (record.timestamp, record.timestamp_type) == (DAY + 99, kf.TimestampType.LOG_APPEND_TIME)


def test_log_append_time_when_converted_then_the_bit_is_kept_in_v1_and_gone_in_v0():
    """Case 12: the bit is kept in v1; v0 has no timestamps."""
    for kind in ("v2 log append", "v1 log append", "v1 wrapper log append"):
        records = kf.MemoryRecords(SAMPLES[kind])
        for record, original in zip(
            records.down_convert(1).records.records(), records.records(), strict=True
        ):
            assert record.timestamp_type == kf.TimestampType.LOG_APPEND_TIME
            assert record.timestamp == original.timestamp
        for record in records.down_convert(0).records.records():
            assert (record.timestamp_type, record.timestamp) == (kf.TimestampType.NO_TIMESTAMP, -1)


def test_log_append_time_when_converted_up_then_type_and_time_are_kept():
    for kind in ("v1 log append", "v1 wrapper log append"):
        records = kf.MemoryRecords(SAMPLES[kind])
        rows = as_rows(records.down_convert(2).records.records())
        assert rows == rows_of(SAMPLES[kind])


def test_delete_horizon_when_set_then_timestamps_are_the_original_ones():
    """Case 13: with a delete horizon, deltas are relative to it, often negative."""
    batch = only_batch(SAMPLES["v2 delete horizon"])
    assert batch.delete_horizon_ms == batch.base_timestamp == DAY + 86_400_000
    assert [record.timestamp for record in batch] == [row.timestamp for row in ROWS]
    assert only_batch(SAMPLES["v2 none"]).delete_horizon_ms is None


@pytest.mark.parametrize("codec", range(5))
@pytest.mark.parametrize("timestamps", [[-1], [-1, -1], [5, -1, 5], [9, 3, 7], [0, 2**62, 1]])
def test_timestamps_when_none_or_backwards_then_kept(timestamps, codec):
    """Case 14: -1 stays -1; timestamps go backwards within a batch."""
    rows = [Row(i, timestamp, b"k", b"v") for i, timestamp in enumerate(timestamps)]
    data = ref.batch_of(rows, codec=codec)
    assert [row.timestamp for row in rows_of(data)] == timestamps
    converted = kf.MemoryRecords(data).down_convert(1, zstd_fallback=kf.Codec.GZIP).records
    assert [record.timestamp for record in converted.records()] == timestamps
    if codec != ref.ZSTD:
        back = converted.down_convert(2).records
        assert [record.timestamp for record in back.records()] == timestamps


# Cases 15, 16, 17: what codecs meet


@pytest.mark.parametrize("magic", [0, 1, 2])
@pytest.mark.parametrize("v0_checksum", [True, False])
def test_lz4_when_either_header_checksum_then_read_in_any_format(magic, v0_checksum):
    """Case 15: v0's header checksum is over the wrong bytes; each is read in either."""
    plain = ref.records(ROWS, 10, DAY) if magic == 2 else ref.messages(magic, ROWS, 10 * magic)
    frame = lz4.frame.compress(plain, block_linked=False, store_size=False)
    frame = ref.lz4_with_v0_checksum(frame) if v0_checksum else frame
    data = in_batch(magic, ref.LZ4, frame)
    assert [row.value for row in rows_of(data)] == [row.value for row in ROWS]


def test_lz4_when_converted_then_each_format_gets_the_checksum_it_wants():
    """Case 15: v0 is written with the wrong checksum, v1 and later with the right one."""
    records = kf.MemoryRecords(SAMPLES["v2 lz4"])
    for magic, offset in ((0, 26), (1, 34)):
        (batch,) = records.down_convert(magic).records.batches()
        frame = bytes(batch.buffer)[offset:]
        assert frame[:4] == b"\x04\x22\x4d\x18"
        right = frame == ref.lz4_with_right_checksum(frame)
        assert right == (magic == 1)
        assert (frame == ref.lz4_with_v0_checksum(frame)) == (magic == 0)


def in_batch(magic: int, codec: int, payload: bytes) -> bytes:
    """ROWS in a payload that the test has compressed itself."""
    if magic == 2:
        return ref.batch(payload, 3, attributes=codec, base_offset=10, base_timestamp=DAY)
    return ref.message(magic, 12, DAY, None, payload, attributes=codec)


def plain_of(magic: int) -> bytes:
    return ref.records(ROWS, 10, DAY) if magic == 2 else ref.messages(magic, ROWS, 10 * magic)


def _lz4_linked(data: bytes) -> bytes:
    return lz4.frame.compress(data, block_linked=True, block_size=lz4.frame.BLOCKSIZE_MAX64KB)


def _snappy_little_endian(data: bytes) -> bytes:
    block = bytes(snappy.compress_raw(data))
    return b"\x82SNAPPY\0" + struct.pack("<ii", 1, 1) + struct.pack(">i", len(block)) + block


def _snappy_in_two_blocks(data: bytes) -> bytes:
    blocks = [bytes(snappy.compress_raw(part)) for part in (data[:20], data[20:])]
    framed = b"".join(struct.pack(">i", len(block)) + block for block in blocks)
    return b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1) + framed


def _in_two(compress):
    return lambda data: compress(data[:25]) + compress(data[25:])


def _zstd(data: bytes, *, sized: bool) -> bytes:
    return zstandard.ZstdCompressor(write_content_size=sized).compress(data)


# What a foreign producer may write -> its codec, and how.
FRAMINGS = {
    "Case 15: lz4 with a content checksum": (
        ref.LZ4,
        lambda data: lz4.frame.compress(data, content_checksum=True),
    ),
    "Case 15: lz4 with block checksums": (
        ref.LZ4,
        lambda data: lz4.frame.compress(data, block_checksum=True),
    ),
    "Case 15: lz4 of linked blocks": (ref.LZ4, _lz4_linked),
    "Case 15: lz4 with its content size": (ref.LZ4, lambda data: lz4.frame.compress(data, store_size=True)),
    "Case 16: snappy in xerial framing": (ref.SNAPPY, lambda data: ref.compress(ref.SNAPPY, data)),
    "Case 16: snappy in xerial framing, little-endian": (ref.SNAPPY, _snappy_little_endian),
    "Case 16: snappy in two xerial blocks": (ref.SNAPPY, _snappy_in_two_blocks),
    "Case 16: snappy as a raw block": (ref.SNAPPY, lambda data: bytes(snappy.compress_raw(data))),
    "Case 17: gzip of several members": (ref.GZIP, _in_two(gzip.compress)),
    "Case 17: lz4 of several frames": (ref.LZ4, _in_two(lz4.frame.compress)),
    "Case 17: zstd without content size": (ref.ZSTD, lambda data: _zstd(data, sized=False)),
    "zstd with content size": (ref.ZSTD, lambda data: _zstd(data, sized=True)),
    "zstd of several frames": (ref.ZSTD, _in_two(lambda data: _zstd(data, sized=True))),
}


@pytest.mark.parametrize("magic", [0, 1, 2])
@pytest.mark.parametrize("framing", FRAMINGS)
def test_payload_when_framed_as_others_do_then_read(framing, magic):
    """Cases 15, 16, 17: the framings that producers are known to write."""
    codec, compress = FRAMINGS[framing]
    if codec == ref.ZSTD and magic < 2:
        pytest.skip("zstd came with v2")
    data = in_batch(magic, codec, compress(plain_of(magic)))
    expected = [(row.offset, row.key, row.value) for row in ROWS]
    assert [(row.offset, row.key, row.value) for row in rows_of(data)] == expected
    converted = kf.MemoryRecords(data).down_convert(0, zstd_fallback=kf.Codec.LZ4).records
    assert [(row.offset, row.key, row.value) for row in as_rows(converted.records())] == expected


def test_lz4_when_its_content_checksum_is_wrong_then_corrupt():
    """Case 15: a content checksum, where set, is verified."""
    frame = bytearray(lz4.frame.compress(plain_of(2), content_checksum=True))
    frame[-1] ^= 1
    with pytest.raises(kf.CorruptRecordError):
        rows_of(in_batch(2, ref.LZ4, bytes(frame)))


# Cases 18, 19: compaction


@pytest.mark.parametrize("attributes", [0, ref.TIMESTAMP_TYPE, ref.TRANSACTIONAL, ref.GZIP, ref.ZSTD])
def test_empty_batch_when_compacted_then_no_records_and_next_offset_passes_it(attributes):
    """Case 18: batches with no records, with count 0 and a last offset."""
    data = ref.batch(b"", 0, base_offset=20, last_offset_delta=4, attributes=attributes, max_timestamp=DAY)
    batch = only_batch(data)
    assert (batch.count, batch.base_offset, batch.last_offset, batch.next_offset) == (0, 20, 24, 25)
    assert list(batch) == []
    behind = ref.batch_of([Row(25, DAY, b"k", b"v")])
    assert [row.offset for row in rows_of(data + behind)] == [25]
    assert len(kf.MemoryRecords(data + behind).to_arrow()) == 1


def test_offsets_when_gaps_inside_and_between_batches_then_base_and_last_offset_are_the_original_ones():
    """Case 19: a compacted batch keeps its original base and last offset."""
    data = SAMPLES["v2 gaps"] + ref.batch_of([Row(40, DAY, b"k", b"v")], base_offset=38, last_offset_delta=5)
    first, second = kf.MemoryRecords(data).batches()
    assert (first.base_offset, first.last_offset, first.count) == (1, 10, 4)
    assert [record.offset for record in first] == [3, 5, 7, 8]
    assert (second.base_offset, second.last_offset, second.next_offset) == (38, 43, 44)
    for to_magic in (0, 1):
        converted = kf.MemoryRecords(data).down_convert(to_magic).records
        assert [record.offset for record in converted.records()] == [3, 5, 7, 8, 40]


@pytest.mark.parametrize("codec", [ref.NONE, ref.GZIP, ref.SNAPPY, ref.LZ4])
def test_offsets_when_gaps_and_converted_down_and_up_then_kept(codec):
    """Cases 11, 19: gaps survive wrappers of v1 (relative) and v0 (absolute), and the way back up."""
    data = ref.batch_of(GAPS, codec=codec, base_offset=1, last_offset_delta=9)
    for to_magic in (0, 1):
        down = kf.MemoryRecords(data).down_convert(to_magic).records
        assert [record.offset for record in down.records()] == [3, 5, 7, 8]
        up = down.down_convert(2).records
        assert [record.offset for record in up.records()] == [3, 5, 7, 8]


# Case 20: sequences


@pytest.mark.parametrize("codec", range(5))
def test_sequence_when_it_wraps_inside_a_batch_then_goes_on_from_0(codec):
    """Case 20: sequence numbers wrap from 2^31 - 1 to 0, within a batch too."""
    data = ref.batch_of(ROWS, codec=codec, producer=(7, 1, 2**31 - 2))
    batch = only_batch(data)
    assert [record.sequence for record in batch] == [2**31 - 2, 2**31 - 1, 0]
    assert (batch.base_sequence, batch.last_sequence) == (2**31 - 2, 0)


def test_sequence_when_batch_has_gaps_then_counts_offsets_not_records():
    batch = only_batch(ref.batch_of(GAPS, producer=(7, 1, 100)))
    assert [record.sequence for record in batch] == [100, 102, 104, 105]
    assert [record.sequence for record in only_batch(SAMPLES["v2 none"])] == [-1, -1, -1]


# Case 21: headers


@pytest.mark.parametrize("codec", range(5))
def test_headers_when_null_empty_or_duplicate_then_three_different_things(codec):
    """Case 21: null, empty and duplicate header keys and values survive every round trip."""
    headers = [("a", None), ("a", b""), ("a", b"x"), ("", None), ("", b""), ("ü", b"\xff")]
    builder = kf.RecordBatchBuilder(codec=kf.Codec(codec))
    builder.append(DAY, None, None, headers)
    builder.append(DAY, b"", b"", [])
    data = builder.build()
    first, second = kf.MemoryRecords(data).records()
    assert (first.key, first.value, first.headers) == (None, None, headers)
    assert (second.key, second.value, second.headers) == (b"", b"", [])
    assert ref.read_rows(data)[0].headers == tuple((name.encode(), value) for name, value in headers)
    columns = kf.MemoryRecords(data).to_numpy()
    assert (columns["headers"][0], columns["headers"][1]) == (headers, [])
    arrow = kf.MemoryRecords(data).to_arrow(["headers"])["headers"].to_pylist()
    assert [(each["key"], each["value"]) for each in arrow[0]] == headers
    trimmed = only_batch(ref.batch_of([*ROWS, Row(13, DAY, None, None, ((b"a", None),))])).trim(13)
    assert [record.headers for record in trimmed] == [[("a", None)]]


def test_header_key_when_not_utf8_then_the_record_is_not_lost():
    """Case 21: a header key that is not UTF-8 does not lose the record."""
    data = ref.batch_of(WITH_HEADERS)
    rows = rows_of(data)
    assert rows == WITH_HEADERS  # keys by surrogate escapes, to the byte
    builder = kf.RecordBatchBuilder()
    for record in kf.MemoryRecords(data).records():
        builder.append(record.timestamp, record.key, record.value, record.headers)
    assert ref.read_rows(builder.build()) == WITH_HEADERS
    arrow = kf.MemoryRecords(data).to_arrow(["headers"])["headers"].to_pylist()
    assert arrow[1] == [{"key": "\ufffd\ufffd", "value": b"not utf-8"}]
    for to_magic in (0, 1):
        assert len(list(kf.MemoryRecords(data).down_convert(to_magic).records.records())) == 2


# Case 22: markers


def test_abort_marker_when_its_producer_has_no_open_transaction_then_nothing_else_changes():
    """Case 22: a marker of a transaction that never began is a batch like any other marker."""
    data = end_marker(0, commit=False) + ref.batch_of([Row(1, DAY, b"k", b"v")]) + end_marker(2, commit=False)
    batches = list(kf.MemoryRecords(data).batches())
    assert [batch.is_control for batch in batches] == [True, False, True]
    assert [record.key for record in batches[1]] == [b"k"]
    for to_magic in (0, 1):
        converted = kf.MemoryRecords(data).down_convert(to_magic)
        assert [record.offset for record in converted.records.records()] == [1]
        assert converted.stats.records_converted == 1


@pytest.mark.parametrize("commit", [True, False])
def test_end_marker_when_built_then_as_kafka_lays_it_out(commit):
    builder = kf.RecordBatchBuilder(
        is_control=True, is_transactional=True, producer_id=7, producer_epoch=1, base_offset=5
    )
    builder.append_end_transaction_marker(DAY, commit=commit)
    assert builder.build() == end_marker(5, commit=commit)


# Case 23: the layout follows the magic, not what is around it


@pytest.mark.parametrize(
    "order", [("v0", "v1", "v2 none"), ("v2 none", "v1", "v0"), ("v1", "v2 gzip", "v1 lz4")]
)
def test_read_when_old_formats_stand_among_new_ones_then_each_by_its_own_magic(order):
    """Case 23: records of v0 and v1 in a response to a new fetch request are still of the old layout."""
    data = b"".join(SAMPLES[kind] for kind in order)
    assert rows_of(data) == [row for kind in order for row in ref.read_rows(SAMPLES[kind])]


def test_codec_names_when_read_then_the_enum():
    for codec, name in enumerate(CODEC_NAMES):
        assert only_batch(SAMPLES[f"v2 {name}"]).codec is kf.Codec(codec)
