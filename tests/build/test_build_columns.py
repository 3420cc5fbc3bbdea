"""Batches out of columns: as if record by record, from every layout, and nothing read that is not theirs."""

from __future__ import annotations

import subprocess
import sys
import threading

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kafkafmt as kf
import reference as ref
from _kafkafmt.columns.column_rows import ColumnEntries, ColumnRows
from kafkafmt.build.builder import BatchesBuilder
from kafkafmt.columns.read import arrow_schema
from records.forms import EVERY_FORMAT, header_names
from records.samples import DAY, SAMPLES, as_rows, without_sequence

HEADERS = arrow_schema(["headers"]).field("headers").type
BINARY_TYPES = [
    pa.binary(),
    pa.large_binary(),
    pa.binary_view(),
    pa.string(),
    pa.large_string(),
    pa.string_view(),
]

columns_of_any_kind = st.lists(
    st.tuples(
        st.just(-1) | st.integers(-1, 2**63 - 1) | st.integers(DAY, DAY + 1000),
        st.none() | st.binary(max_size=30),
        st.none() | st.binary(max_size=200),
        st.lists(st.tuples(header_names, st.none() | st.binary(max_size=9)), max_size=3),
    ),
    max_size=200,
)


def binary_column(items: list[bytes | None]) -> kf.BinaryColumn:
    valid = np.array([item is not None for item in items], np.bool_)
    offsets = np.cumsum([0, *(len(item or b"") for item in items)], dtype=np.int64)
    data = np.frombuffer(b"".join(item or b"" for item in items), np.uint8)
    return kf.BinaryColumn(offsets, data, None if valid.all() else valid)


def headers_column(headers: list[list[tuple[str, bytes | None]]]) -> kf.HeadersColumn:
    pairs = [pair for pairs in headers for pair in pairs]
    return kf.HeadersColumn(
        np.cumsum([0, *map(len, headers)], dtype=np.int64),
        binary_column([name.encode("utf-8", "surrogateescape") for name, _ in pairs]),
        binary_column([value for _, value in pairs]),
    )


def numpy_columns(rows) -> tuple:
    timestamps, keys, values, headers = zip(*rows, strict=True) if rows else ((), (), (), ())
    return (
        np.array(timestamps, np.int64),
        binary_column(list(keys)),
        binary_column(list(values)),
        headers_column(list(headers)),
    )


def built_from_rows(rows, **options) -> list[bytes]:
    """What `build_batches` promises, record by record."""
    batches, done = [], 0
    base_offset = options.pop("base_offset", 0)
    builder = kf.RecordBatchBuilder(base_offset=base_offset, **options)
    for row in rows:
        if not builder.has_room_for(*row):
            batches.append(builder.build())
            done += len(builder)
            builder = kf.RecordBatchBuilder(base_offset=base_offset + done, **options)
        builder.append(*row)
    return [*batches, builder.build()] if rows else []


def simple_rows(count: int) -> list[tuple]:
    return [
        (DAY + i, None if i % 3 == 0 else b"key-%d" % i, None if i % 7 == 0 else b"value " * (i % 9), [])
        for i in range(count)
    ]


# As if record by record


@settings(max_examples=400, deadline=None)
@given(
    columns_of_any_kind,
    st.sampled_from(EVERY_FORMAT),
    st.integers(0, 3000),
    st.integers(0, 2**40),
    st.sampled_from([1.0, 0.7, 0.123, 0.0, 1.9]),
)
def test_build_batches_when_any_columns_then_the_batches_of_append_and_has_room_for(
    rows, form, batch_size, base_offset, ratio
):
    magic, codec = form
    if magic < 2:
        rows = [(*row[:3], []) for row in rows]
    options = {
        "magic": magic,
        "codec": codec,
        "batch_size": batch_size,
        "base_offset": base_offset,
        "estimated_ratio": ratio,
    }
    batches = list(kf.build_batches(*numpy_columns(rows), **options))
    assert all(type(batch) is bytes for batch in batches)
    assert batches == built_from_rows(rows, **options)


@pytest.mark.parametrize("options", [
    {"timestamp_type": kf.TimestampType.LOG_APPEND_TIME, "log_append_time": DAY + 9},
    {"delete_horizon_ms": DAY - 1000},
    {"partition_leader_epoch": 7},
    {"codec": kf.Codec.ZSTD, "level": 3, "estimated_ratio": 0.2},
])  # fmt: skip
def test_build_batches_when_an_option_is_given_then_as_the_builder_takes_it(options):
    rows = simple_rows(500)
    batches = list(kf.build_batches(*numpy_columns(rows), batch_size=1000, **options))
    assert batches == built_from_rows(rows, batch_size=1000, **options)
    assert len(batches) > 3


def test_build_batches_when_idempotent_then_sequences_go_on_and_wrap():
    rows = simple_rows(100)
    producer = {"producer_id": 5, "producer_epoch": 2, "base_sequence": 2**31 - 30, "is_transactional": True}
    data = b"".join(kf.build_batches(*numpy_columns(rows), batch_size=500, **producer))
    records = list(kf.MemoryRecords(data).records())
    assert [record.sequence for record in records] == [(2**31 - 30 + i) % 2**31 for i in range(100)]
    assert [record.offset for record in records] == list(range(100))
    assert all(batch.is_transactional for batch in kf.MemoryRecords(data).batches())


def test_build_batches_when_a_record_is_larger_than_a_batch_then_it_stands_alone():
    rows = [(DAY, None, b"v", []), (DAY, None, bytes(5000), []), (DAY, None, b"v", [])]
    batches = kf.build_batches(*numpy_columns(rows), batch_size=1000)
    assert [len(list(kf.MemoryRecords(batch).records())) for batch in batches] == [1, 1, 1]


def test_build_batches_when_there_are_no_records_then_none():
    assert list(kf.build_batches(*numpy_columns([]))) == []
    assert list(kf.build_batches(pa.array([], pa.timestamp("us")), pa.array([], pa.binary()), None)) == []


@pytest.mark.parametrize("form", EVERY_FORMAT, ids=str)
@pytest.mark.parametrize("batch_size", [400, 1 << 20])
def test_build_batches_when_offsets_have_gaps_then_records_keep_them_and_batches_begin_at_one(
    form, batch_size
):
    magic, codec = form
    offsets = np.arange(300, dtype=np.int64) ** 2 // 7 + 2 * np.arange(300) + 11
    columns = numpy_columns(simple_rows(300))
    data = b"".join(
        kf.build_batches(*columns, offsets, batch_size=batch_size, magic=magic, codec=codec, base_offset=5)
    )
    records = kf.MemoryRecords(data)
    assert [record.offset for record in records.records()] == offsets.tolist()
    assert {batch.base_offset for batch in records.batches()} <= set(offsets.tolist())
    assert [record.value for record in records.records()] == [columns[2][i] for i in range(300)]


def test_build_batches_when_offsets_are_2_to_the_31_apart_then_another_batch_begins():
    offsets = pa.chunked_array([[0, 2**31 - 1], [2**31, 2**40, 2**63 - 1]])
    columns = pa.array([1] * 5), None, pa.array([b"v"] * 5)
    data = b"".join(kf.build_batches(*columns, offsets=offsets))
    found = [(batch.base_offset, batch.last_offset) for batch in kf.MemoryRecords(data).batches()]
    assert found == [(0, 2**31 - 1), (2**31, 2**31), (2**40, 2**40), (2**63 - 1, 2**63 - 1)]


@pytest.mark.parametrize("wrong", [6, 0, -1])
def test_build_batches_when_offsets_do_not_ascend_then_refused(wrong):
    offsets = np.array([5, 6, wrong, 9])
    batches = kf.build_batches(*numpy_columns(simple_rows(4)), offsets, batch_size=60)
    assert len(next(batches)) > 0
    with pytest.raises(ValueError, match=f"offsets, entry 2: expected more than 6, found {wrong}"):
        list(batches)


@pytest.mark.parametrize(
    ("offsets", "error", "what"),
    [
        (np.arange(3), ValueError, "offsets: expected 4 entries"),
        (np.arange(4.0), TypeError, "offsets: expected an array of int64"),
        (pa.array([1, 2, None, 3]), ValueError, "offsets: expected no nulls, found 1"),
        (pa.array([1, 2, 3, 4], pa.int32()), TypeError, "offsets: expected an array of int64"),
        ([1, 2, 3, 4], TypeError, "offsets: expected an array of int64"),
    ],
)
def test_build_batches_when_offsets_do_not_fit_then_an_error_at_once(offsets, error, what):
    with pytest.raises(error, match=what):
        kf.build_batches(*numpy_columns(simple_rows(4)), offsets)


def test_append_columns_when_given_offsets_then_as_append_with_offset():
    by_row, by_column = kf.RecordBatchBuilder(base_offset=3), kf.RecordBatchBuilder(base_offset=3)
    rows, offsets = simple_rows(4), [4, 6, 7, 90]
    for offset, row in zip(offsets, rows, strict=True):
        by_row.append_with_offset(offset, *row)
    by_column.append_columns(*numpy_columns(rows), np.array(offsets))
    before = by_column.size_in_bytes
    with pytest.raises(ValueError, match="not within 2\\^31"):
        by_column.append_columns(*numpy_columns(rows), np.array([91, 92, 93, 2**40]))
    assert by_column.size_in_bytes == before
    assert by_column.build() == by_row.build()


def test_batches_when_built_part_by_part_then_those_of_all_at_once():
    rows = simple_rows(500)
    builder = BatchesBuilder(batch_size=900)
    batches = [
        one for first in range(0, 500, 7) for one in builder.add(*numpy_columns(rows[first : first + 7]))
    ]
    assert builder.size_in_bytes > 0
    batches.append(builder.finish())
    assert batches == list(kf.build_batches(*numpy_columns(rows), batch_size=900))
    assert builder.finish() == b""
    list(builder.add(*numpy_columns(rows[:1])))
    assert next(kf.MemoryRecords(builder.finish()).batches()).base_offset == 500


def test_append_columns_when_mixed_with_rows_then_at_the_next_offsets():
    rows = simple_rows(300)
    builder, expected = kf.RecordBatchBuilder(base_offset=5), kf.RecordBatchBuilder(base_offset=5)
    for row in rows:
        expected.append(*row)
    builder.append(*rows[0])
    builder.append_columns(*numpy_columns(rows[1:200]))
    builder.append(*rows[200])
    builder.append_columns(*numpy_columns(rows[201:]))
    assert (len(builder), builder.build()) == (300, expected.build())


def test_append_columns_when_the_batch_would_pass_its_size_then_appended_all_the_same():
    builder = kf.RecordBatchBuilder(batch_size=100)
    builder.append_columns(*numpy_columns(simple_rows(100)))
    assert len(builder) == 100


def test_append_columns_when_header_values_come_before_keys_then_are_taken_by_their_names():
    builder = kf.RecordBatchBuilder()
    header = pa.struct([("value", pa.binary()), ("key", pa.string())])
    headers = pa.array([[{"value": b"v", "key": "k"}], [{"key": "l", "value": None}]], pa.list_(header))
    builder.append_columns(np.zeros(2, np.int64), None, None, headers)
    assert [record.headers for record in kf.MemoryRecords(builder.build()).records()] == [
        [("k", b"v")],
        [("l", None)],
    ]


@pytest.mark.parametrize("headers_size", [10, 30_000])
def test_append_columns_when_headers_are_many_or_large_then_all_of_them(headers_size):
    rows = [
        (DAY, b"k", None, [(f"h{i}", bytes([i]) * headers_size), ("none", None)] * (i % 4))
        for i in range(100)
    ]
    builder = kf.RecordBatchBuilder()
    builder.append_columns(*numpy_columns(rows))
    assert [record.headers for record in kf.MemoryRecords(builder.build()).records()] == [
        row[3] for row in rows
    ]


# What `to_numpy` and `to_arrow` return


@pytest.mark.parametrize("kind", SAMPLES)
@pytest.mark.parametrize("to_columns", [
    lambda records: records.to_numpy(),
    lambda records: records.to_arrow(),
    lambda records: records.to_arrow(views=True),
])  # fmt: skip
def test_append_columns_when_read_from_records_then_these_again(kind, to_columns):
    records = kf.MemoryRecords(SAMPLES[kind] * 3)
    columns = to_columns(records)
    magic = 1 if "v1" in kind or "v0" in kind else 2
    builder = kf.RecordBatchBuilder(magic)
    builder.append_columns(*(columns[name] for name in ("timestamp", "key", "value", "headers")))
    expected = [
        row._replace(
            offset=i,
            timestamp_type=0,
            headers=tuple(
                (name.decode(errors="replace").encode() if isinstance(columns, pa.Table) else name, value)
                for name, value in row.headers
            ),
        )
        for i, row in enumerate(without_sequence(as_rows(records.records())))
    ]
    assert without_sequence(ref.read_rows(builder.build())) == expected


# Arrow's types


@pytest.mark.parametrize("kind", BINARY_TYPES, ids=str)
@pytest.mark.parametrize("first", [0, 3, 13])
def test_append_columns_when_an_arrow_array_is_sliced_then_only_its_part(kind, first):
    items = [None if i % 5 == 2 else b"x" * (i % 17) + b"%d" % i for i in range(60)]
    array = pa.array(items, pa.binary()).cast(kind)
    timestamps = pa.array(range(DAY, DAY + 60), pa.int64())
    builder = kf.RecordBatchBuilder()
    builder.append_columns(timestamps[first:50], array[first:50], array[first:50])
    rows = ref.read_rows(builder.build())
    assert [row.key for row in rows] == [row.value for row in rows] == items[first:50]
    assert [row.timestamp for row in rows] == list(range(DAY + first, DAY + 50))


def test_append_columns_when_arrow_chunks_differ_then_as_if_they_were_whole():
    items = [None if i % 5 == 2 else b"%d" % i * (i % 17) for i in range(100)]
    headers = [[{"key": "h", "value": b"%d" % i}] if i % 4 else None for i in range(100)]
    whole = pa.array(items, pa.binary())
    keys = pa.chunked_array([whole[:10], whole[10:10], whole[10:75], whole[75:]])
    values = pa.chunked_array([whole[:50], whole[50:]])
    header_chunks = pa.chunked_array([pa.array(headers[:33], HEADERS), pa.array(headers[33:], HEADERS)])
    timestamps = np.arange(DAY, DAY + 100)
    chunked, plain = kf.RecordBatchBuilder(), kf.RecordBatchBuilder()
    chunked.append_columns(timestamps, keys, values, header_chunks)
    plain.append_columns(timestamps, whole, whole, pa.array(headers, HEADERS))
    assert chunked.build() == plain.build()
    assert [row.headers for row in ref.read_rows(plain.build())] == [
        ((b"h", b"%d" % i),) if i % 4 else () for i in range(100)
    ]
    batches = list(kf.build_batches(timestamps, keys, values, header_chunks, batch_size=700))
    assert batches == list(
        kf.build_batches(timestamps, whole, whole, pa.array(headers, HEADERS), batch_size=700)
    )


def test_append_columns_when_numpy_beside_chunked_arrow_then_cut_alike():
    rows = [(DAY + i, b"%d" % i, b"v%d" % i, [("h", b"%d" % i)] * (i % 3)) for i in range(50)]
    timestamps, keys, values, headers = numpy_columns(rows)
    arrow_keys = pa.chunked_array([[row[1] for row in rows[:20]], [row[1] for row in rows[20:]]], pa.binary())
    mixed, plain = kf.RecordBatchBuilder(), kf.RecordBatchBuilder()
    mixed.append_columns(timestamps, arrow_keys, values, headers)
    plain.append_columns(timestamps, keys, values, headers)
    assert mixed.build() == plain.build()


@pytest.mark.parametrize("kind", [pa.list_, pa.large_list])
def test_append_columns_when_arrow_headers_are_sliced_or_null_then_only_those_there(kind):
    pairs = pa.struct([("key", pa.string_view()), ("value", pa.large_binary())])
    headers = [
        None if i % 3 == 0 else [{"key": f"k{j}", "value": None if j else b"v"} for j in range(i % 4)]
        for i in range(40)
    ]
    array = pa.array(headers, kind(pairs))[7:30]
    builder = kf.RecordBatchBuilder()
    builder.append_columns(np.zeros(23, np.int64), None, pa.nulls(23), array)
    assert [record.headers for record in kf.MemoryRecords(builder.build()).records()] == [
        [(pair["key"], pair["value"]) for pair in row or []] for row in headers[7:30]
    ]


@pytest.mark.parametrize(
    ("unit", "numbers"),
    [
        ("s", [DAY // 1000, 0]),
        ("ms", [DAY, 0, -1]),
        ("us", [DAY * 1000, DAY * 1000 + 999, 0, -1, -1000]),
        ("ns", [DAY * 10**6, DAY * 10**6 + 999_999, -1]),
    ],
)
@pytest.mark.parametrize("zone", [None, "Europe/Berlin"])
def test_append_columns_when_arrow_timestamps_then_rounded_down_to_milliseconds(unit, numbers, zone):
    per_second = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[unit]
    timestamps = pa.array([0, *numbers], pa.timestamp(unit, zone))[1:]
    builder = kf.RecordBatchBuilder()
    builder.append_columns(timestamps, None, None)
    assert [row.timestamp for row in ref.read_rows(builder.build())] == [
        number * 1000 // per_second for number in numbers
    ]


def test_append_columns_when_arrays_are_not_contiguous_then_their_items():
    rows = simple_rows(40)
    timestamps, keys, values, _ = numpy_columns(rows)
    strided = kf.BinaryColumn(
        np.repeat(keys.offsets, 2)[::2], np.repeat(keys.data, 3)[::3], np.repeat(keys.valid, 2)[::2]
    )
    one, other = kf.RecordBatchBuilder(), kf.RecordBatchBuilder()
    one.append_columns(np.repeat(timestamps, 2)[::2], strided, values)
    other.append_columns(timestamps, keys, values)
    assert one.build() == other.build()


def test_append_columns_when_numpy_then_pyarrow_is_not_imported():
    script = """
import sys
import numpy as np
import kafkafmt as kf
builder = kf.RecordBatchBuilder()
builder.append_columns(np.zeros(2, np.int64), None, kf.BinaryColumn(np.arange(3), np.zeros(2, np.uint8), None))
next(kf.build_batches(*(kf.MemoryRecords(builder.build()).to_numpy()[n] for n in ("timestamp", "key", "value"))))
try:
    builder.append_columns([1], None, None)
except TypeError:
    sys.exit("pyarrow" in sys.modules)
"""
    subprocess.run([sys.executable, "-c", script], check=True)


# Columns that do not fit


GOOD = binary_column([b"abc", b"de", None])
THREE = np.full(3, DAY)
OFFSETS = np.arange(4)


def a_column(offsets, size: int = 3, valid=None) -> kf.BinaryColumn:
    return kf.BinaryColumn(np.array(offsets, np.int64), np.zeros(size, np.uint8), valid)


def arrow_of(kind, entries, data: bytes) -> pa.Array:
    """An array of three whose offsets or views change after Arrow has looked at them."""
    memory = np.zeros_like(entries)
    array = pa.Array.from_buffers(kind, 3, [None, pa.py_buffer(memory), pa.py_buffer(data)])
    memory[:] = entries
    return array


def views(size: int, buffer: int, start: int) -> pa.Array:
    return arrow_of(pa.binary_view(), np.array([size, 0, buffer, start] * 3, np.int32), bytes(24))


@pytest.mark.parametrize(
    ("columns", "what"),
    [
        ((THREE.astype(np.int32), None, None), "timestamps: expected an array of int64"),
        ((THREE.astype(">i8"), None, None), "timestamps: expected an array of int64"),
        ((THREE.reshape(3, 1), None, None), "one dimension"),
        (([DAY] * 3, None, None), "timestamps: expected .*list"),
        ((None, None, GOOD), "timestamps"),
        ((pa.array([1.5] * 3), None, None), "timestamps: .*Arrow array of double"),
        ((THREE, [b"a"] * 3, None), "keys: expected a BinaryColumn.*list"),
        ((THREE, pa.array([1, 2, 3]), None), "keys: expected .*int64"),
        ((THREE, None, THREE), "values: expected .*array of int64"),
        ((THREE, kf.BinaryColumn(OFFSETS.astype(np.int32), GOOD.data, None), None), "keys: offsets"),
        ((THREE, kf.BinaryColumn(OFFSETS, b"abc", None), None), "keys: data: expected .*bytes"),
        ((THREE, kf.BinaryColumn(OFFSETS, GOOD.data, np.ones(3, np.uint8)), None), "keys: valid"),
        ((THREE, None, None, GOOD), "headers: expected a HeadersColumn"),
        ((THREE, None, None, [[]] * 3), "headers: expected a HeadersColumn"),
        ((THREE, None, None, pa.array([[b"a"]] * 3)), "headers: expected .*list"),
        ((THREE, None, None, kf.HeadersColumn(OFFSETS, None, GOOD)), "headers: expected keys"),
    ],
)
def test_append_columns_when_a_type_does_not_fit_then_type_error(columns, what):
    with pytest.raises(TypeError, match=what):
        kf.RecordBatchBuilder().append_columns(*columns)


HEADERS_OF = [
    ([0, 1, 2, 4], GOOD, GOOD, "within 3, found 2 and 4"),
    ([0, 2, 1, 3], GOOD, GOOD, "within 3, found 2 and 1"),
    ([0, 1, 2, 3], binary_column([b"a"]), GOOD, "within 1"),
    ([0, 1, 2, 3], GOOD, GOOD, "headers' keys, entry 2: expected a key, found null"),
    ([0, 1, 2, 3], a_column([0, 1, 2, 4]), GOOD, "headers' keys, entry 2: .*within 3"),
    ([0, 1, 2, 3], a_column([0, 1, 2, 3]), a_column([0, 9, 2, 3]), "headers' values, entry 0: .*within 3"),
]


@pytest.mark.parametrize(
    ("columns", "what"),
    [
        ((THREE, a_column(range(5), 4), None), "keys: expected 3 entries.*found 4"),
        ((THREE, None, GOOD, headers_column([[]])), "headers: expected 3 entries.*found 1"),
        ((THREE, None, pa.nulls(2)), "values: expected 3 entries.*found 2"),
        ((THREE, a_column([]), None), "keys: expected 3 entries"),
        ((THREE, a_column([0, 1, 2, 3], 3, np.ones(2, np.bool_)), None), "keys: valid: expected 3"),
        ((THREE, a_column([0, 1, 2, 4]), None), "keys, entry 2: .*within 3, found 2 and 4"),
        (
            (THREE, None, a_column([0, 2, 1, 3])),
            "values, entry 1: expected offsets that ascend.*found 2 and 1",
        ),
        ((THREE, a_column([-1, 1, 2, 3]), None), "keys, entry 0: .*found -1 and 1"),
        ((THREE, a_column([0, 1, 2, 2**63 - 1]), None), "keys, entry 2"),
        ((THREE, a_column([0, 1, 2, -(2**63)]), None), "keys, entry 2"),
        ((np.array([0, -2, 0]), None, None), "timestamps, entry 1: .*found -2"),
        ((pa.array([0, None, 0], pa.timestamp("ms")), None, None), "timestamps: expected no nulls"),
        ((THREE, arrow_of(pa.binary(), np.int32([0, 1, 2, 4]), b"abc"), None), "keys, entry 2: .*within 3"),
        ((THREE, arrow_of(pa.large_binary(), np.int64([0, 1, -1, 4]), b"abc"), None), "keys, entry 1"),
        ((THREE, views(25, 0, 0), None), "25 bytes from 0 on"),
        ((THREE, views(20, 0, 5), None), "20 bytes from 5 on"),
        ((THREE, views(20, 1, 0), None), "keys, entry 0"),
        ((THREE, views(20, -1, 0), None), "keys, entry 0"),
        ((THREE, views(20, 0, -1), None), "keys, entry 0"),
        ((THREE, views(-1, 0, 0), None), "keys, entry 0"),
        *(
            ((THREE, None, None, kf.HeadersColumn(np.array(offsets), keys, values)), what)
            for offsets, keys, values, what in HEADERS_OF
        ),
    ],
)
def test_append_columns_when_refused_then_value_error_and_the_batch_is_as_before(columns, what):
    builder = kf.RecordBatchBuilder()
    builder.append(DAY, b"k", b"v")
    before = builder.build()
    with pytest.raises(ValueError, match=what):
        builder.append_columns(*columns)
    assert (len(builder), builder.build()) == (1, before)
    builder.append_columns(THREE, GOOD, GOOD)
    assert [row.key for row in ref.read_rows(builder.build())] == [b"k", b"abc", b"de", None]


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        ((3, 4, bytes(15)), {}),
        ((3, 4, bytes(16)), {"first": 1}),
        ((3, 8, bytes(24)), {}),
        ((3, 16, bytes(47)), {}),
        ((3, 4, b""), {}),
        ((-1, 4, bytes(16)), {}),
        ((1, 4, bytes(16)), {"first": -1}),
        ((2**62, 4, bytes(16)), {"first": 2**62}),
        ((3, 5, bytes(99)), {}),
        ((3, 4, bytes(16)), {"valid": bytes(2)}),
        ((9, 4, bytes(99)), {"valid": bytes(1), "bitmap": True}),
        ((3, 4, bytes(99)), {"valid": bytes(1), "bitmap": True, "first": 6}),
    ],
)
def test_entries_when_a_buffer_is_too_small_for_them_then_value_error(arguments, options):
    with pytest.raises(ValueError, match=r"expected|do not hold"):
        ColumnEntries(*arguments, **options)


def test_column_rows_when_offsets_lead_to_no_bytes_then_type_error():
    ranges = ColumnEntries(3, 8, OFFSETS, limit=3)
    with pytest.raises(TypeError, match="byte strings"):
        ColumnRows(THREE, ranges, None)
    with pytest.raises(TypeError, match="byte strings"):
        ColumnRows(THREE, None, None, ranges, ranges, ranges)


def test_column_rows_when_made_in_part_or_not_at_all_then_no_records_and_no_memory_is_read():
    refused = ColumnRows.__new__(ColumnRows)
    with pytest.raises(ValueError, match="expected 1000 entries"):
        refused.__init__(np.zeros(1000, np.int64), ColumnEntries(3, 8, OFFSETS, data=[b"abc"]), None)
    for rows in (refused, ColumnRows.__new__(ColumnRows)):
        assert len(rows) == rows.count == 0
        assert kf.RecordBatchBuilder().fill(rows, 0, 0) == 0
        with pytest.raises(ValueError, match="first"):
            kf.RecordBatchBuilder().fill(rows, 1, 1)
    entries = ColumnEntries.__new__(ColumnEntries)
    with pytest.raises(TypeError, match="byte strings"):
        ColumnRows(THREE[:0], entries, None)
    with pytest.raises(ValueError, match="3 entries"):
        ColumnRows(THREE, entries, None)


def test_column_rows_when_made_again_then_refused():
    rows = ColumnRows(THREE, None, None)
    with pytest.raises(RuntimeError, match="once"):
        rows.__init__(THREE[:1], None, None)
    assert len(rows) == 3


class Remade(list):
    """Buffers that make their column again while they are listed."""

    def __iter__(self):
        self.entries.__init__(3, 8, OFFSETS, data=[b"abc"])
        return super().__iter__()


def test_entries_when_made_again_from_within_then_refused():
    buffers = Remade([b"abc"] * 5)
    buffers.entries = ColumnEntries.__new__(ColumnEntries)
    with pytest.raises(RuntimeError, match="once"):
        buffers.entries.__init__(3, 8, OFFSETS, data=buffers)
    assert len(buffers.entries) == 3


def test_builder_when_columns_are_none_then_type_error():
    builder = kf.RecordBatchBuilder()
    for call in (
        lambda: builder.fill(None, 0, 0),
        lambda: builder._append_columns(None),
        lambda: builder._append_columns([None]),
        lambda: ColumnRows(None, None, None),
    ):
        with pytest.raises(TypeError):
            call()
    assert len(builder) == 0


def test_append_columns_when_a_later_chunk_is_refused_then_none_of_them_is_appended():
    timestamps = pa.chunked_array([[DAY] * 100, [DAY, -2]])
    builder = kf.RecordBatchBuilder()
    with pytest.raises(ValueError, match=r"timestamps, entry 101: .*found -2"):
        builder.append_columns(timestamps, None, None)
    assert len(builder) == 0


@pytest.mark.parametrize("magic", [0, 1])
def test_append_columns_when_there_are_headers_before_v2_then_refused(magic):
    builder = kf.RecordBatchBuilder(magic)
    builder.append_columns(THREE, GOOD, GOOD, headers_column([[], [], []]))
    with pytest.raises(ValueError, match=r"headers, entry 1: .*v2"):
        builder.append_columns(THREE, GOOD, GOOD, headers_column([[], [("h", b"1")], []]))
    assert len(builder) == 3


def test_append_columns_when_offsets_pass_2_to_the_31_then_refused():
    builder = kf.RecordBatchBuilder()
    builder.append_with_offset(2**31 - 2, DAY, None, None)
    with pytest.raises(ValueError, match=r"record 1: .*2\^31"):
        builder.append_columns(THREE, None, None)
    assert len(builder) == 1


def test_append_columns_when_offsets_pass_the_last_of_all_then_refused_as_rows_are():
    builder = kf.RecordBatchBuilder(base_offset=2**63 - 2)
    with pytest.raises(
        ValueError, match=r"record 2: expected an offset behind the last one, 9223372036854775807"
    ):
        builder.append_columns(THREE, None, None)
    assert len(builder) == 0
    builder.append_columns(THREE[:2], None, None)
    with pytest.raises(ValueError, match="offset"):
        builder.append(DAY, None, None)


@pytest.mark.parametrize(
    "column", [np.zeros(0), [], pa.array([], pa.int32()), pa.chunked_array([], pa.int32())]
)
@pytest.mark.parametrize("place", range(4))
def test_append_columns_when_empty_columns_are_of_wrong_types_then_type_error(column, place):
    columns = [np.zeros(0, np.int64), None, None, None]
    columns[place] = column
    with pytest.raises(TypeError, match="expected"):
        kf.RecordBatchBuilder().append_columns(*columns)
    with pytest.raises(TypeError, match="expected"):
        kf.build_batches(*columns)


HEADERS_TYPE = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


@pytest.mark.parametrize("of", [pa.array, lambda _, kind: pa.chunked_array([], kind)])
@pytest.mark.parametrize("timestamps", [pa.int64(), pa.timestamp("s"), pa.timestamp("us")])
@pytest.mark.parametrize("strings", [pa.binary(), pa.large_string(), pa.binary_view(), pa.null()])
def test_append_columns_when_arrow_columns_are_empty_then_no_records(of, timestamps, strings):
    columns = of([], timestamps), of([], strings), of([], strings), of([], HEADERS_TYPE)
    builder = kf.RecordBatchBuilder()
    builder.append_columns(*columns)
    assert len(builder) == 0
    assert list(kf.build_batches(*columns)) == []


def test_build_batches_when_arguments_are_wrong_then_an_error_before_the_first_batch():
    with pytest.raises(ValueError, match="keys"):
        kf.build_batches(THREE, a_column([0, 1]), None)
    with pytest.raises(TypeError, match="last_offset"):
        kf.build_batches(THREE, GOOD, None, last_offset=5)
    with pytest.raises(ValueError, match="zstd"):
        kf.build_batches(THREE, GOOD, None, magic=1, codec=kf.Codec.ZSTD)


def test_build_batches_when_an_entry_is_refused_then_the_batches_before_it():
    rows = simple_rows(100)
    timestamps, keys, values, _ = numpy_columns(rows)
    timestamps[90] = -5
    batches = kf.build_batches(timestamps, keys, values, batch_size=500)
    data = []
    with pytest.raises(ValueError, match=r"timestamps, entry 90"):
        data.extend(batches)
    assert data == built_from_rows(rows, batch_size=500)[: len(data)]
    assert data


def test_build_batches_when_another_thread_changes_the_columns_then_no_harm():
    """What is read may be anything then, but it is within the columns, or refused."""
    count = 3000
    offsets = np.arange(count + 1) * 10
    values = kf.BinaryColumn(offsets.copy(), np.zeros(count * 10, np.uint8), np.ones(count, np.bool_))
    headers = kf.HeadersColumn(np.arange(count + 1), values, values)
    wild = np.random.default_rng(0).integers(-(2**62), 2**62, count + 1)
    done = threading.Event()

    def change() -> None:
        while not done.is_set():
            values.offsets[:] = wild
            values.offsets[:] = offsets[::-1]
            values.valid[::3] ^= True
            values.offsets[:] = offsets

    thread = threading.Thread(target=change)
    thread.start()
    try:
        for _ in range(100):
            try:
                for batch in kf.build_batches(np.zeros(count, np.int64), values, values, headers):
                    assert kf.MemoryRecords(batch).index()["count"].sum() > 0
            except ValueError:
                pass
    finally:
        done.set()
        thread.join()
