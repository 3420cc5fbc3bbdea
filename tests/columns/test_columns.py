"""Columns: numpy and Arrow against iteration, types as Spark's Kafka source has them, columns left out."""

from __future__ import annotations

import gc
import random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings

import kafkafmt as kf
import reference as ref
from _kafkafmt.batches.scan import scan
from _kafkafmt.columns.arrays import lend
from _kafkafmt.columns.columns import ColumnBuilder
from convert.test_lazy_down_conversion import logs
from kafkafmt.columns.read import arrow_batches, numpy_batches
from records.samples import DAY, EVERY_KIND, ROWS, SAMPLES, as_rows, rows_of_columns, without_sequence
from reference import Row

SOURCE = kf.TopicPartition("clicks", 3)


def assert_columns_equal_iteration(records: kf.Records) -> None:
    rows = without_sequence(as_rows(records.records()))
    columns = records.to_numpy()
    assert rows_of_columns(columns) == rows
    assert all(len(column) == len(rows) for column in columns.values())
    for views in (False, True):
        table = records.to_arrow(views=views)
        table.validate(full=True)
        got = table.drop_columns(["timestamp"]).to_pydict()  # which may be past what datetime holds
        assert got["key"] == [row.key for row in rows]
        assert got["value"] == [row.value for row in rows]
        assert got["offset"] == [row.offset for row in rows]
        assert table["timestamp"].cast(pa.int64()).to_pylist() == [row.timestamp * 1000 for row in rows]
        assert got["timestampType"] == [row.timestamp_type for row in rows]
        headers = [
            [{"key": name.decode(errors="replace"), "value": value} for name, value in row.headers] or None
            for row in rows
        ]
        assert got["headers"] == headers


@pytest.mark.parametrize("kind", SAMPLES)
def test_columns_when_any_kind_then_equal_to_iteration(kind):
    assert_columns_equal_iteration(kf.MemoryRecords(SAMPLES[kind]))


def test_columns_when_all_kinds_in_one_buffer_then_equal_to_iteration():
    assert_columns_equal_iteration(kf.MemoryRecords(EVERY_KIND * 20))


@settings(max_examples=60, deadline=None)
@given(logs())
def test_columns_when_any_log_then_equal_to_iteration(data):
    if any(row.timestamp > 2**63 // 1000 for row in ref.read_rows(data)):
        return  # not to be told in microseconds
    assert_columns_equal_iteration(kf.MemoryRecords(data))


def test_columns_when_there_are_more_than_one_chunk_holds_then_joined(tmp_path):
    rows = [
        Row(i, DAY + i, None if i % 7 else b"k%d" % i, random.Random(i).randbytes(7000)) for i in range(3000)
    ]
    batches = [ref.batch_of(rows[i : i + 50], codec=i // 50 % 5) for i in range(0, 3000, 50)]
    path = tmp_path / "log"
    path.write_bytes(b"".join(batches))
    with kf.FileRecords(path) as records:
        columns = records.to_numpy()
        assert columns["offset"].tolist() == list(range(3000))
        assert [columns["key"][i] for i in range(3000)] == [row.key for row in rows]
        table = records.to_arrow(views=True)
        assert table["key"].to_pylist() == [row.key for row in rows]
        assert table["value"].num_chunks > 1
        assert table["value"].to_pylist() == [row.value for row in rows]


@pytest.mark.parametrize("chunk_bytes", [1, 100, 1000, 10**9])
def test_numpy_batches_when_kept_then_together_what_to_numpy_returns(chunk_bytes):
    records = kf.MemoryRecords(EVERY_KIND * 3)
    chunks = list(numpy_batches(records, chunk_bytes=chunk_bytes))
    assert [row for chunk in chunks for row in rows_of_columns(chunk)] == rows_of_columns(records.to_numpy())
    assert len(chunks) == 1 or chunk_bytes < 10**9


@pytest.mark.parametrize("views", [False, True])
def test_arrow_batches_when_kept_then_together_what_to_arrow_returns(views):
    records = kf.MemoryRecords(EVERY_KIND * 3, topic_partition=SOURCE)
    batches = list(arrow_batches(records, views=views, chunk_bytes=100))
    assert len(batches) > 1
    table = pa.Table.from_batches(batches)
    table.validate(full=True)
    assert table.equals(records.to_arrow(views=views))


@pytest.mark.thread_unsafe
def test_numpy_batches_when_chunks_are_dropped_then_their_memory_is_used_again():
    value = random.Random(1).randbytes(20_000)
    data = b"".join(ref.batch_of([Row(i, DAY, None, value)] * 9) for i in range(20))
    # The process keeps 32 MiB of dropped memory at most: what other tests left of these sizes is out of the way.
    others = [lend(size) for size in (100_000, 400_000) for _ in range(2**25 // size + 1)]
    places = set()
    for chunk in numpy_batches(kf.MemoryRecords(data), chunk_bytes=1):
        places.add(chunk["value"].data.ctypes.data)
        assert chunk["value"][8] == value
    assert len(places) <= 2  # that of the chunk at hand, and of the one before it
    del others


def test_numpy_batches_when_one_array_is_kept_then_it_stays_as_it_was():
    values = [random.Random(i).randbytes(50) for i in range(20)]
    data = b"".join(ref.batch_of([Row(i, DAY, None, value)]) for i, value in enumerate(values))
    kept = [chunk["value"].data for chunk in numpy_batches(kf.MemoryRecords(data), chunk_bytes=1)]
    assert [bytes(array) for array in kept] == values
    kept[3][:] = 0  # and is its own memory
    assert [bytes(array) for i, array in enumerate(kept) if i != 3] == values[:3] + values[4:]


@pytest.mark.parametrize("headers", [(), ((b"h", b"v"),)])
@pytest.mark.parametrize("damage", [ref.record(0, 0, b"k", b"v", length=99), b"\x08\0\0\0\1", b"\0"])
def test_numpy_batches_when_the_end_of_a_batch_is_damaged_then_only_what_stands_before_the_batch(
    damage, headers
):
    sound = [Row(0, DAY, b"key", b"value", headers), Row(1, DAY, None, b"another", headers)]
    records = ref.records(sound, 0, DAY)
    data = ref.batch_of(sound) + ref.batch(records + damage, 3, base_timestamp=DAY)
    chunks = numpy_batches(kf.MemoryRecords(data))
    assert rows_of_columns(next(chunks)) == sound
    with pytest.raises(kf.KafkaFormatError) as raised:
        next(chunks)
    assert raised.value.position == len(ref.batch_of(sound))


def test_numpy_batches_when_the_topic_is_not_known_then_value_error_at_once():
    with pytest.raises(ValueError, match="topic_partition"):
        numpy_batches(kf.MemoryRecords(EVERY_KIND), ["topic"])


def reserved(chunk: dict) -> int:
    """Bytes of the memory that a chunk's values are a part of: a spare block of up to four times what was reserved."""
    return memoryview(chunk["value"].data.base).nbytes


def test_numpy_batches_when_plain_and_compressed_are_mixed_then_reserved_by_all_that_is_there():
    plain = ref.batch_of([Row(0, DAY, None, bytes(500_000))])
    data = plain + ref.batch_of([Row(1, DAY, None, b"v")], codec=1) + plain * 60
    chunk = next(numpy_batches(kf.MemoryRecords(data), chunk_bytes=1_000_000))
    assert reserved(chunk) < 4 * 2_000_000  # not the 30 MB of the source


def test_column_builder_when_more_is_expected_than_int32_offsets_reach_then_reserved_up_to_there():
    batch = ref.batch_of([Row(0, DAY, None, bytes(100))])
    run, *_ = scan(batch)
    builder = ColumnBuilder(["value"], source_bytes=1 << 40, chunk_bytes=3 << 30)
    builder.add(run, 0, 1, None, verify=True)
    assert builder.take()["value"][1].tobytes() == bytes(100)


def test_column_builder_when_made_in_part_or_twice_or_given_none_then_an_error():
    run, *_ = scan(EVERY_KIND)
    nothing = ColumnBuilder.__new__(ColumnBuilder)
    builder = ColumnBuilder(["value"])
    for call in (
        lambda: nothing.add(run, 0, 0, None, verify=True),
        lambda: nothing.take(),
        lambda: builder.add(None, 0, 0, None, verify=True),
    ):
        with pytest.raises(TypeError):
            call()
    with pytest.raises(RuntimeError):
        builder.__init__(["value"])


@pytest.mark.parametrize("codec", [0, 4])
def test_columns_when_strings_of_any_size_end_a_batch_then_read_whole(codec):
    """They are copied in steps, where as much can be read behind them."""
    for size in (*range(70), 255, 256, 257, 300):
        value = random.Random(size).randbytes(size)
        rows = [Row(i, DAY, value[: size // (i + 1)], value[i:]) for i in range(4)]
        columns = kf.MemoryRecords(ref.batch_of(rows, codec=codec)).to_numpy()
        assert rows_of_columns(columns) == rows


def test_columns_when_headers_come_late_then_those_before_have_none():
    plain = [Row(i, DAY, None, b"v" * i) for i in range(5)]
    mixed = [*plain, Row(5, DAY, b"k", None, ((b"a", b"1"), (b"b", None)))]
    data = ref.batch_of(plain) + ref.batch_of(mixed) + ref.batch_of(plain)
    assert rows_of_columns(kf.MemoryRecords(data).to_numpy()) == plain + mixed + plain
    assert_columns_equal_iteration(kf.MemoryRecords(data))


@pytest.mark.parametrize("batches", [numpy_batches, arrow_batches])
@pytest.mark.parametrize("chunk_bytes", [0, -1])
def test_columns_when_a_chunk_is_to_have_no_bytes_then_value_error(batches, chunk_bytes):
    with pytest.raises(ValueError, match="chunk_bytes"):
        batches(kf.MemoryRecords(EVERY_KIND), chunk_bytes=chunk_bytes)


def test_numpy_batches_when_a_file_is_read_then_as_from_memory(tmp_path):
    path = tmp_path / "log"
    path.write_bytes(EVERY_KIND * 20)
    with kf.FileRecords(path) as records:
        chunks = list(numpy_batches(records, chunk_bytes=500))
    assert [row for chunk in chunks for row in rows_of_columns(chunk)] == without_sequence(
        as_rows(kf.MemoryRecords(EVERY_KIND * 20).records())
    )


def test_to_arrow_when_all_columns_then_the_types_of_sparks_kafka_source():
    schema = kf.MemoryRecords(SAMPLES["v2 headers"]).to_arrow().schema
    assert [(field.name, field.type) for field in schema] == [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("timestampType", pa.int32()),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
    ]
    assert kf.MemoryRecords(b"").to_arrow().schema == schema
    views = kf.MemoryRecords(b"").to_arrow(views=True).schema
    assert (views.field("key").type, views.field("value").type) == (pa.binary_view(), pa.binary_view())


def test_to_arrow_when_the_topic_is_known_then_it_and_the_partition():
    table = kf.MemoryRecords(SAMPLES["v1"], topic_partition=SOURCE).to_arrow()
    assert table["topic"].to_pylist() == ["clicks"] * 3
    assert table["partition"].to_pylist() == [3] * 3
    unknown = kf.MemoryRecords(SAMPLES["v1"]).to_arrow(["topic", "partition"])
    assert unknown.to_pydict() == {"topic": [None] * 3, "partition": [None] * 3}


def test_to_numpy_when_the_topic_is_asked_for_then_it_or_value_error():
    columns = kf.MemoryRecords(SAMPLES["v1"], topic_partition=SOURCE).to_numpy(["topic", "partition"])
    assert columns["topic"].tolist() == ["clicks"] * 3
    assert (columns["partition"].dtype, columns["partition"].tolist()) == (np.int32, [3] * 3)
    with pytest.raises(ValueError, match="topic_partition"):
        kf.MemoryRecords(SAMPLES["v1"]).to_numpy(["topic"])


def test_to_numpy_when_read_then_of_exact_types():
    columns = kf.MemoryRecords(SAMPLES["v2 headers"]).to_numpy()
    assert columns["offset"].dtype == columns["timestamp"].dtype == np.int64
    assert columns["timestampType"].dtype == np.int32
    assert columns["key"].offsets.dtype == np.int64
    assert columns["key"].data.dtype == np.uint8
    assert columns["key"].valid.tolist() == [True, False]


@pytest.mark.parametrize(
    "columns", [[], ["offset"], ["value", "key"], ["headers"], ["timestampType", "timestamp"]]
)
def test_columns_when_some_are_asked_for_then_only_those_in_that_order(columns):
    records = kf.MemoryRecords(EVERY_KIND)
    assert list(records.to_numpy(columns)) == columns
    table = records.to_arrow(columns)
    assert table.column_names == columns
    assert table.equals(records.to_arrow().select(columns)) or not columns


@pytest.mark.parametrize("columns", [["nothing"], ["key", "key"], ["Key"], "key"])
def test_columns_when_names_are_wrong_then_an_error_of_arguments(columns):
    records = kf.MemoryRecords(EVERY_KIND)
    for method in (records.to_numpy, records.to_arrow, records.numpy_batches, records.arrow_batches):
        with pytest.raises((ValueError, TypeError), match="columns"):
            method(columns)


@pytest.mark.parametrize("size", [0, 1, 4, 11, 12, 13, 14, 100, 70_000])
@pytest.mark.parametrize("codec", range(5))
def test_arrow_views_when_short_or_long_then_the_same_values(size, codec):
    """Views of up to 12 bytes hold their bytes, longer ones point at them."""
    rows = [Row(i, DAY, bytes([i]) * size, None if i % 3 == 0 else bytes([i]) * (size + i)) for i in range(9)]
    data = ref.batch_of(rows, codec=codec) + SAMPLES["v1"] + ref.batch_of(rows, codec=codec)
    table = kf.MemoryRecords(data).to_arrow(["key", "value"], views=True)
    table.validate(full=True)
    expected = rows + ROWS + rows
    assert table["key"].to_pylist() == [row.key for row in expected]
    assert table["value"].to_pylist() == [row.value for row in expected]


def test_arrow_views_when_uncompressed_then_they_point_into_the_source():
    data = bytearray(ref.batch_of([Row(0, DAY, None, b"a value of more than twelve bytes")]))
    table = kf.MemoryRecords(data).to_arrow(["value"], views=True)
    data[data.index(b"more")] = ord("M")
    assert table["value"].to_pylist() == [b"a value of More than twelve bytes"]
    with pytest.raises(BufferError):
        data.clear()
    del table
    gc.collect()
    data.clear()


def test_to_arrow_when_unverified_then_damaged_values_are_read():
    data = bytearray(SAMPLES["v2 none"])
    data[data.index(b"first")] ^= 0x20
    records = kf.MemoryRecords(data)
    with pytest.raises(kf.CorruptRecordError):
        records.to_arrow(["value"])
    assert records.to_arrow(["value"], verify=False)["value"].to_pylist()[0] == b"First"
    assert records.to_numpy(["value"], verify=False)["value"][0] == b"First"


@pytest.mark.parametrize("timestamp", [2**60, 2**63 - 1, 2**63 // 1000 + 1])
def test_to_arrow_when_a_timestamp_does_not_fit_into_microseconds_then_no_wrong_one(timestamp):
    data = ref.batch_of([Row(0, timestamp, b"k", b"v")])
    assert kf.MemoryRecords(data).to_numpy(["timestamp"])["timestamp"].tolist() == [timestamp]
    try:
        column = kf.MemoryRecords(data).to_arrow(["timestamp"])["timestamp"]
    except kf.InvalidRecordError:
        return
    assert column.null_count == 1


@pytest.mark.parametrize("codec", [kf.Codec.NONE, kf.Codec.ZSTD])
def test_to_batches_when_a_timestamp_does_not_fit_then_the_error_has_the_place_of_its_batch(codec):
    data = b""
    for base, timestamps in ((0, [1, 2]), (2, [3, 2**60, 4]), (5, [2**61])):
        builder = kf.RecordBatchBuilder(codec=codec, base_offset=base)
        for timestamp in timestamps:
            builder.append(timestamp, b"k", b"v")
        batch = builder.build()
        if base == 2:
            start, end = len(data), len(data) + len(batch)
        data += batch
    batches = kf.MemoryRecords(data).arrow_batches(["offset", "timestamp"])
    assert next(batches)["offset"].to_pylist() == [0, 1, 2]
    with pytest.raises(kf.InvalidRecordError, match=f"found {2**60} ms") as raised:
        next(batches)
    found = raised.value
    assert (found.position, found.next_position, found.base_offset, found.last_offset) == (start, end, 2, 4)


def test_to_batches_when_the_timestamp_of_a_marker_does_not_fit_then_the_error_has_the_place_of_its_batch():
    sound = ref.batch_of([Row(0, DAY, None, b"v")])
    marker = kf.RecordBatchBuilder(
        base_offset=1, producer_id=5, producer_epoch=0, is_transactional=True, is_control=True
    )
    marker.append_end_transaction_marker(2**62, commit=True)
    records = kf.MemoryRecords(sound + bytes(marker.build()))
    assert records.to_arrow().num_rows == 1
    with pytest.raises(kf.InvalidRecordError, match=f"position {len(sound)}, offsets 1 to 1"):
        records.to_arrow(control=True)


def test_to_arrow_when_there_is_no_timestamp_then_minus_one_millisecond_as_in_spark():
    """Case 14: -1 stays -1."""
    table = kf.MemoryRecords(SAMPLES["v0"]).to_arrow(["timestamp", "timestampType"])
    assert table["timestamp"].cast(pa.int64()).to_pylist() == [-1000] * 3
    assert table["timestampType"].to_pylist() == [-1] * 3


def test_binary_column_when_indexed_then_like_a_list():
    column = kf.MemoryRecords(SAMPLES["v1"]).to_numpy(["key"])["key"]
    assert [column[i] for i in (0, 1, 2, -1, -3)] == [b"a", None, b"", b"", b"a"]
    for i in (3, -4):
        with pytest.raises(IndexError):
            column[i]
    assert list(column) == [b"a", None, b""]


def test_headers_column_when_indexed_then_like_a_list():
    column = kf.MemoryRecords(SAMPLES["v2 headers"]).to_numpy(["headers"])["headers"]
    assert len(column) == 2
    assert column[-2] == [("h", b"1"), ("h", b""), ("", None)]
    with pytest.raises(IndexError):
        column[2]
