"""Building batches: round trips for anything that fits, arguments that do not, sizes that are estimated."""

from __future__ import annotations

import array
import mmap

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kafkafmt as kf
import reference as ref
from _kafkafmt.records.build import RecordEncoder
from kafkafmt.columns.write import column_rows
from records.forms import EVERY_FORMAT, header_names
from records.samples import DAY, as_row, as_rows, rows_of
from reference import Row

rows_of_any_kind = st.lists(
    st.tuples(
        st.integers(0, 3) | st.integers(0, 2**27),  # the gap in front of it
        st.just(-1) | st.integers(-1, 2**63 - 1),
        st.none() | st.binary(max_size=30),
        st.none() | st.binary(max_size=200),
        st.lists(st.tuples(header_names, st.none() | st.binary(max_size=9)), max_size=3),
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=300, deadline=None)
@given(rows_of_any_kind, st.sampled_from(EVERY_FORMAT), st.integers(0, 2**40))
def test_round_trip_when_any_records_then_the_same_and_as_the_reference_reads_them(rows, form, base_offset):
    magic, codec = form
    builder = kf.RecordBatchBuilder(magic, codec, base_offset=base_offset)
    expected, offset = [], base_offset - 1
    for gap, timestamp, key, value, headers in rows:
        offset += 1 + gap
        headers = headers if magic == 2 else []
        builder.append_with_offset(offset, timestamp, key, value, headers)
        names = tuple((name.encode("utf-8", "surrogateescape"), content) for name, content in headers)
        expected.append(Row(offset, timestamp if magic else -1, key, value, names, 0 if magic else -1))
    data = builder.build()
    assert ref.read_rows(data) == expected
    assert rows_of(data) == expected
    assert all(batch.is_valid() for batch in kf.MemoryRecords(data).batches())
    assert (len(builder), builder.build()) == (len(rows), data)
    batches = list(kf.MemoryRecords(data).batches())
    assert (batches[0].base_offset, batches[-1].last_offset) == (
        base_offset if magic == 2 else expected[0].offset,
        offset,
    )
    if magic == 2 or codec:
        (batch,) = batches
        assert (batch.count, batch.codec) == (len(rows), codec)
        if magic:
            assert batch.max_timestamp == max(row.timestamp for row in expected)


@pytest.mark.parametrize(("magic", "codec"), EVERY_FORMAT)
def test_build_when_log_append_time_then_all_records_have_it(magic, codec):
    """Case 12: in v0 there is none to have."""
    options = {"timestamp_type": kf.TimestampType.LOG_APPEND_TIME, "log_append_time": DAY + 9}
    if magic == 0:
        with pytest.raises(ValueError, match="v0"):
            kf.RecordBatchBuilder(magic, codec, **options)
        return
    builder = kf.RecordBatchBuilder(magic, codec, **options)
    for timestamp in (DAY, DAY - 5):
        builder.append(timestamp, b"k", b"v")
    rows = ref.read_rows(builder.build())
    assert [(row.timestamp, row.timestamp_type) for row in rows] == [(DAY + 9, 1)] * 2


@pytest.mark.parametrize("codec", list(kf.Codec))
def test_build_when_every_header_field_is_set_then_read_back(codec):
    builder = kf.RecordBatchBuilder(
        codec=codec,
        base_offset=100,
        delete_horizon_ms=DAY + 1000,
        last_offset=150,
        partition_leader_epoch=3,
        producer_id=2**40,
        producer_epoch=32767,
        base_sequence=2**31 - 1,
        is_transactional=True,
    )
    builder.append_with_offset(120, DAY, b"k", b"v")
    (batch,) = kf.MemoryRecords(builder.build()).batches()
    assert (batch.base_offset, batch.last_offset, batch.delete_horizon_ms) == (100, 150, DAY + 1000)
    assert (batch.partition_leader_epoch, batch.producer_id, batch.producer_epoch) == (3, 2**40, 32767)
    assert (batch.base_sequence, batch.is_transactional, batch.is_control) == (2**31 - 1, True, False)
    (record,) = batch
    assert as_row(record) == Row(120, DAY, b"k", b"v", (), 0, 19)
    assert ref.read_rows(builder.build()) == [as_row(record)]


def test_build_when_no_records_then_nothing_or_an_empty_batch():
    """Case 18: with a last offset a batch may be empty."""
    for magic in (0, 1, 2):
        assert kf.RecordBatchBuilder(magic).build() == b""
    for codec in kf.Codec:
        data = kf.RecordBatchBuilder(codec=codec, base_offset=5, last_offset=9).build()
        (batch,) = kf.MemoryRecords(data).batches()
        assert (batch.count, batch.base_offset, batch.next_offset, list(batch)) == (0, 5, 10, [])
        assert ref.read_rows(data) == []


@pytest.mark.parametrize("level", [-7, 1, 19])
def test_build_when_zstd_has_a_level_then_the_same_records(level):
    builder = kf.RecordBatchBuilder(codec=kf.Codec.ZSTD, level=level)
    builder.append(DAY, b"k", b"v" * 1000)
    assert ref.read_rows(builder.build())[0].value == b"v" * 1000


# Arguments


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"magic": 3}, "magic"),
        ({"magic": -1}, "magic"),
        ({"codec": 5}, "5"),
        ({"magic": 1, "codec": kf.Codec.ZSTD}, "zstd"),
        ({"magic": 1, "producer_id": 5}, "v2"),
        ({"magic": 1, "producer_epoch": 5}, "v2"),
        ({"magic": 0, "base_sequence": 5}, "v2"),
        ({"magic": 1, "partition_leader_epoch": 5}, "v2"),
        ({"magic": 0, "is_transactional": True}, "v2"),
        ({"magic": 1, "is_control": True}, "v2"),
        ({"magic": 1, "delete_horizon_ms": 5}, "v2"),
        ({"is_transactional": True}, "producer_id"),
        ({"base_offset": 5, "last_offset": 4}, "last_offset"),
        ({"magic": 1, "last_offset": 4}, "last_offset"),
        ({"log_append_time": 5}, "log_append_time"),
        ({"timestamp_type": kf.TimestampType.LOG_APPEND_TIME}, "log_append_time"),
        ({"codec": kf.Codec.ZSTD, "level": 99}, "zstd level must be -7 to 22, not 99"),
        ({"codec": kf.Codec.SNAPPY, "level": 1}, "snappy has no compression levels"),
        ({"level": 1}, "none has no compression levels"),
        ({"base_sequence": 2**31}, "base_sequence: expected -2147483648 to 2147483647"),
        ({"producer_epoch": 2**15}, "producer_epoch: expected -32768 to 32767"),
        ({"partition_leader_epoch": -(2**31) - 1}, "partition_leader_epoch"),
        (
            {"timestamp_type": kf.TimestampType.NO_TIMESTAMP},
            "timestamp_type: expected CREATE_TIME or LOG_APPEND_TIME, found -1",
        ),
        ({"timestamp_type": -1, "magic": 1}, "timestamp_type"),
        ({"timestamp_type": 7}, "timestamp_type: expected CREATE_TIME or LOG_APPEND_TIME, found 7"),
        ({"timestamp_type": 7, "magic": 0}, "timestamp_type"),
        ({"producer_id": -2}, "producer_id: expected -1 to"),
        ({"producer_id": 5, "base_sequence": 0}, "producer_epoch: expected 0 to 32767, found -1"),
        ({"producer_id": 5, "producer_epoch": 0}, "base_sequence: expected 0 to 2147483647, found -1"),
        ({"producer_id": 5, "is_control": True}, "producer_epoch"),
        ({"producer_epoch": 0, "is_transactional": True}, "a transactional batch needs a producer_id"),
        ({"last_offset": 2**31}, "last_offset"),
        ({"estimated_ratio": float("nan")}, "estimated_ratio"),
        ({"estimated_ratio": -0.5}, "estimated_ratio"),
    ],
)
def test_builder_when_arguments_do_not_fit_then_value_error(options, what):
    with pytest.raises(ValueError, match=what):
        kf.RecordBatchBuilder(**options)


@pytest.mark.parametrize(
    "options",
    [
        {"is_control": True},
        {"is_control": True, "producer_id": 5, "producer_epoch": 0},
        {"is_transactional": True, "producer_id": 5, "producer_epoch": 0, "base_sequence": 0},
    ],
)
def test_end_transaction_marker_when_no_transaction_can_end_with_it_then_value_error(options):
    builder = kf.RecordBatchBuilder(**options)
    with pytest.raises(ValueError, match="is_control=True and is_transactional=True"):
        builder.append_end_transaction_marker(DAY, commit=True)
    assert len(builder) == 0


def test_end_transaction_marker_when_the_coordinator_epoch_is_too_large_then_value_error():
    builder = kf.RecordBatchBuilder(is_control=True, is_transactional=True, producer_id=5, producer_epoch=0)
    with pytest.raises(ValueError, match=r"coordinator_epoch: expected .* to 2147483647, found 2147483648"):
        builder.append_end_transaction_marker(DAY, commit=True, coordinator_epoch=2**31)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"commit": 2}, ValueError, "commit: expected True or False, found 2"),
        ({"commit": None}, ValueError, "commit: expected True or False, found None"),
        (
            {"commit": True, "coordinator_epoch": 1.5},
            TypeError,
            "coordinator_epoch: expected an int, found float",
        ),
    ],
)
def test_end_transaction_marker_when_an_argument_is_wrong_then_an_error(arguments, error, message):
    builder = kf.RecordBatchBuilder(is_control=True, is_transactional=True, producer_id=5, producer_epoch=0)
    with pytest.raises(error, match=message):
        builder.append_end_transaction_marker(DAY, **arguments)
    assert len(builder) == 0


@pytest.mark.parametrize("magic", [0, 1, 2])
def test_append_when_refused_then_the_batch_is_as_before(magic):
    builder = kf.RecordBatchBuilder(magic, base_offset=10)
    builder.append(DAY, b"k", b"v")
    refused = [
        (ValueError, lambda: builder.append_with_offset(10, DAY, b"k", b"v")),
        (ValueError, lambda: builder.append_with_offset(9, DAY, b"k", b"v")),
        (ValueError, lambda: builder.append_with_offset(10 + 2**31, DAY, b"k", b"v")),
        (ValueError, lambda: builder.append(-2, b"k", b"v")),
        (OverflowError, lambda: builder.append(2**63, b"k", b"v")),
        (OverflowError, lambda: builder.append_with_offset(2**63, DAY, b"k", b"v")),
        (TypeError, lambda: builder.append(DAY, "text", b"v")),
        (TypeError, lambda: builder.append(DAY, b"k", 5)),
        (BufferError, lambda: builder.append(DAY, memoryview(b"abcdef")[::2], b"v")),
        (BufferError, lambda: builder.append(DAY, b"k", np.zeros((4, 4), np.uint8)[:, 1])),
    ]
    if magic < 2:
        refused.append((ValueError, lambda: builder.append(DAY, b"k", b"v", [("h", b"1")])))
    else:
        refused += [
            (TypeError, lambda: builder.append(DAY, b"k", b"v", [(None, b"1")])),
            (TypeError, lambda: builder.append(DAY, b"k", b"v", [("h", "text")])),
            (TypeError, lambda: builder.append(DAY, b"k", b"v", [(5, b"1")])),
        ]
    for error, append in refused:
        with pytest.raises(error):
            append()
    builder.append(DAY, b"k2", b"v2")
    rows = ref.read_rows(builder.build())
    assert [(row.offset, row.key, row.value, row.headers) for row in rows] == [
        (10, b"k", b"v", ()),
        (11, b"k2", b"v2", ()),
    ]


@pytest.mark.parametrize(
    "kind",
    [
        bytes,
        bytearray,
        memoryview,
        lambda data: memoryview(b"__" + data + b"__")[2:-2],
        lambda data: np.frombuffer(data, np.uint8),
        lambda data: array.array("B", data),
        lambda data: array.array("H", data),
        lambda data: np.frombuffer(data, np.uint8).reshape(2, 4),
    ],
)
def test_append_when_any_kind_of_buffer_then_its_bytes(kind):
    data = b"12345678"
    builder = kf.RecordBatchBuilder()
    builder.append(DAY, kind(data), kind(data), [(b"h", kind(data)), (kind(data), None)])
    row = Row(0, DAY, data, data, ((b"h", data), (data, None)))
    assert ref.read_rows(builder.build()) == [row]


def test_append_when_the_source_changes_afterwards_then_the_batch_does_not():
    value = bytearray(b"before")
    builder = kf.RecordBatchBuilder()
    builder.append(DAY, None, value, [("h", value)])
    value[:] = b"after!"
    value += b"and it can grow: nothing holds it"
    assert ref.read_rows(builder.build())[0][3:5] == (b"before", ((b"h", b"before"),))


def test_append_when_headers_are_any_iterable_then_all_of_them():
    builder = kf.RecordBatchBuilder()
    builder.append(DAY, None, None, iter([("a", b"1"), ("b", None)]))
    builder.append(DAY, None, None, {"c": b"2"}.items())
    assert [row.headers for row in ref.read_rows(builder.build())] == [
        ((b"a", b"1"), (b"b", None)),
        ((b"c", b"2"),),
    ]


# Sizes


@pytest.mark.parametrize("magic", [0, 1, 2])
def test_estimated_size_when_uncompressed_then_the_size(magic):
    builder = kf.RecordBatchBuilder(magic)
    for i in range(50):
        builder.append(DAY + i * 1000, b"k" * i, None if i % 3 else b"v" * i)
        assert builder.estimated_size == len(builder.build())


def test_estimated_size_when_compressed_then_by_the_ratio():
    for ratio in (1.0, 0.5, 0.1):
        builder = kf.RecordBatchBuilder(codec=kf.Codec.GZIP, estimated_ratio=ratio)
        plain = kf.RecordBatchBuilder()
        for _ in range(20):
            builder.append(DAY, b"k", bytes(1000))
            plain.append(DAY, b"k", bytes(1000))
        assert builder.estimated_size == pytest.approx(61 + (plain.estimated_size - 61) * ratio * 1.05, abs=2)


@pytest.mark.parametrize("magic", [0, 1, 2])
def test_has_room_for_when_the_limit_comes_then_the_batch_is_within_it(magic):
    headers = [("h", b"1")] if magic == 2 else []
    builder = kf.RecordBatchBuilder(magic, batch_size=1000)
    assert builder.has_room_for(DAY, b"k", bytes(5000), headers)  # a first one always fits
    while builder.has_room_for(DAY, b"k", bytes(90), headers):
        builder.append(DAY, b"k", bytes(90), headers)
    size = len(builder.build())
    builder.append(DAY, b"k", bytes(90), headers)
    assert size <= 1000 < len(builder.build())


def test_is_full_when_the_batch_size_is_reached_then_nothing_has_room():
    builder = kf.RecordBatchBuilder(batch_size=61 + 7 + 93)
    assert not builder.is_full
    builder.append(DAY, None, None)
    assert not builder.is_full
    assert builder.has_room_for(DAY, None, bytes(84))
    builder.append(DAY, None, bytes(84))
    assert builder.estimated_size == builder.batch_size
    assert builder.is_full
    assert not builder.has_room_for(DAY, None, None)
    builder.batch_size = None
    assert not builder.is_full


def test_is_full_when_there_is_no_record_then_not():
    assert not kf.RecordBatchBuilder(batch_size=0).is_full


@pytest.mark.slow
def test_append_when_many_records_then_all_come_back():
    builder = kf.RecordBatchBuilder(codec=kf.Codec.LZ4)
    for i in range(200_000):
        builder.append(DAY + i, b"%d" % i, None)
    records = kf.MemoryRecords(builder.build())
    assert [record.key for record in records.records()] == [b"%d" % i for i in range(200_000)]
    assert len(as_rows(records.records())) == 200_000


# Headers that are not what they seem


def test_append_when_headers_are_a_dict_then_refused():
    builder = kf.RecordBatchBuilder()
    with pytest.raises(TypeError, match="expected pairs"):
        builder.append(DAY, b"k", b"v", {"a": b"1"})
    assert len(builder) == 0


def test_room_when_headers_are_an_iterator_then_refused_before_it_is_used_up():
    builder = kf.RecordBatchBuilder(batch_size=1000)
    builder.append(DAY, b"k", b"v")
    headers = iter([("a", b"1")])
    with pytest.raises(TypeError, match="read only once"):
        builder.has_room_for(DAY, b"k", b"v", headers)
    assert list(headers) == [("a", b"1")]


class _Appending(list):
    """Headers that append to the builder while it reads them."""

    def __init__(self, builder):
        super().__init__([("a", b"1")])
        self.builder = builder

    def __iter__(self):
        self.builder.append(DAY, b"inner", b"v", [("b", b"2")])
        return super().__iter__()


def test_append_when_it_is_called_from_within_then_refused_and_nothing_is_appended():
    builder = kf.RecordBatchBuilder()
    with pytest.raises(RuntimeError, match="one record at a time"):
        builder.append(DAY, b"outer", b"v", _Appending(builder))
    assert len(builder) == 0
    builder.append(DAY, b"k", b"v", [("a", b"1")])
    assert [record.headers for record in kf.MemoryRecords(builder.build()).records()] == [[("a", b"1")]]


def test_append_when_the_timestamp_is_a_float_of_seconds_then_refused():
    with pytest.raises(TypeError):
        kf.RecordBatchBuilder().append(1_700_000_000.5, b"k", b"v")


@pytest.mark.parametrize("size", [1 << 31, 17 << 30])
def test_append_when_a_header_is_larger_than_a_batch_then_overflow_error_before_it_is_read(size):
    pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=mmap.PROT_READ)
    builder = kf.RecordBatchBuilder()
    for header in ((pages, None), (b"key", pages)):
        with pytest.raises(OverflowError, match=f"{size} bytes do not fit into a record"):
            builder.append(0, b"", b"", [header])
    assert len(builder) == 0


def test_builder_when_it_is_made_again_with_wrong_arguments_then_as_before():
    builder = kf.RecordBatchBuilder(1)
    builder.append(DAY, b"k", b"v")
    before = builder.build()
    for wrong in ({"estimated_ratio": -1.0}, {"base_offset": "x"}, {"codec": "x"}):
        with pytest.raises((ValueError, TypeError)):
            RecordEncoder.__init__(builder, **{"magic": 2, "codec": 0, "base_offset": 0, **wrong})
    assert builder.build() == before


# Appending into memory that is accounted for


@pytest.mark.parametrize("magic", [0, 1, 2])
@pytest.mark.parametrize("codec", [kf.Codec.NONE, kf.Codec.LZ4])
def test_try_append_when_there_is_memory_then_the_batch_of_has_room_for_and_append(codec, magic):
    options = {"magic": magic, "codec": codec, "batch_size": 1000, "estimated_ratio": 0.7}
    asked, tried = kf.RecordBatchBuilder(**options), kf.RecordBatchBuilder(**options)
    for i in range(40):
        row = (DAY + i * 1000, b"k" * i, bytes(i * 3), [("h", b"%d" % i)] if magic == 2 else [])
        if asked.has_room_for(*row):
            asked.append(*row)
            assert tried.try_append(*row) == len(asked)
        else:
            assert tried.try_append(*row) == 0
    assert tried.build() == asked.build()
    assert 2 < len(tried) < 40


def test_try_append_when_first_record_is_larger_than_the_batch_then_appended():
    builder = kf.RecordBatchBuilder(batch_size=10, capacity=1000)
    assert builder.try_append(DAY, None, bytes(500)) == 1
    assert builder.try_append(DAY, None, None) == 0


def test_try_append_when_memory_is_missing_then_says_how_much_and_nothing_is_appended():
    builder = kf.RecordBatchBuilder(capacity=100)
    assert builder.capacity == 100
    assert builder.try_append(DAY, b"k", bytes(500)) == 0
    missing = builder.missing_bytes
    assert missing > 0
    assert (len(builder), builder.size_in_bytes, builder.capacity) == (0, 0, 100)
    builder.grow(100 + missing - 1)
    assert (builder.try_append(DAY, b"k", bytes(500)), builder.missing_bytes) == (0, 1)
    builder.grow(100 + missing)
    assert builder.try_append(DAY, b"k", bytes(500)) == 1
    assert builder.capacity == 100 + missing == len(builder.build())


def test_try_append_when_there_is_neither_room_nor_memory_then_no_room():
    builder = kf.RecordBatchBuilder(batch_size=100, capacity=100)
    assert builder.try_append(DAY, None, b"v") == 1
    assert (builder.try_append(DAY, None, bytes(500)), builder.missing_bytes) == (0, 0)


def test_try_append_when_headers_are_an_iterator_then_a_type_error_before_it_is_read():
    """A second attempt, after the memory has grown, would append the record without headers."""
    builder = kf.RecordBatchBuilder(batch_size=1000, capacity=70)
    headers = iter([("a", b"1" * 100)])
    with pytest.raises(TypeError, match="headers: expected a sequence, found list_iterator"):
        builder.try_append(DAY, None, None, headers)
    builder.append(DAY, None, None, headers)
    assert ref.read_rows(builder.build())[0].headers == ((b"a", b"1" * 100),)


@pytest.mark.parametrize(
    ("row", "error"),
    [
        ((-2, b"k", b"v"), ValueError),
        ((2**63, b"k", b"v"), OverflowError),
        ((1.5, b"k", b"v"), TypeError),
        ((DAY, "text", b"v"), TypeError),
        ((DAY, b"k", b"v", {"a": b"1"}), TypeError),
    ],
)
def test_try_append_when_append_refuses_then_so_does_it(row, error):
    builder = kf.RecordBatchBuilder(batch_size=1000)
    with pytest.raises(error):
        builder.try_append(*row)
    assert len(builder) == 0


def zeros_of_nearly_2_gib(missing: int) -> mmap.mmap:
    """Pages that take no memory."""
    return mmap.mmap(-1, 2**31 - missing, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=mmap.PROT_READ)


def test_try_append_when_the_batch_would_take_2_gib_then_there_is_no_room():
    builder = kf.RecordBatchBuilder()
    assert builder.try_append(DAY, None, bytes(50)) == 1
    assert builder.try_append(DAY, None, zeros_of_nearly_2_gib(100)) == 0
    assert len(builder) == 1


def test_try_append_when_a_record_alone_would_take_2_gib_then_overflow_error():
    builder = kf.RecordBatchBuilder()
    with pytest.raises(
        OverflowError, match=r"a record of 21474836.. bytes: expected at most 21474835.., as a batch takes"
    ):
        builder.try_append(DAY, None, zeros_of_nearly_2_gib(50))
    assert len(builder) == 0


def test_fill_when_the_batch_would_take_2_gib_then_it_ends():
    data = np.frombuffer(zeros_of_nearly_2_gib(50), np.uint8)
    values = kf.BinaryColumn(np.array([0, 50, len(data)]), data, None)
    (rows,) = column_rows(np.zeros(2, np.int64), None, values, None)
    builder = kf.RecordBatchBuilder(batch_size=2**40)
    assert builder.fill(rows, 0, 2) == 1


def test_try_append_when_called_from_within_then_refused():
    builder = kf.RecordBatchBuilder(batch_size=1000)
    with pytest.raises(RuntimeError, match="one record at a time"):
        builder.try_append(DAY, b"outer", b"v", _Appending(builder))


def test_grow_when_less_is_asked_for_then_it_never_shrinks():
    builder = kf.RecordBatchBuilder(capacity=1000)
    for capacity in (10, 0, 1000):
        builder.grow(capacity)
        assert builder.capacity == 1000
    builder.append(DAY, b"k", b"v")
    builder.grow(5000)
    assert builder.capacity == 5000
    assert [row.key for row in ref.read_rows(builder.build())] == [b"k"]


def test_grow_when_to_more_than_a_batch_takes_then_value_error_and_the_batch_is_as_before():
    builder = kf.RecordBatchBuilder()
    builder.append(DAY, b"k", b"v")
    with pytest.raises(ValueError, match="capacity: expected 0 to 2147483647 bytes, found 2147483648"):
        builder.grow(2**31)
    with pytest.raises(ValueError, match="capacity: expected 0 to 2147483647 bytes, found -1"):
        builder.grow(-1)
    for capacity in (2**31, -1):
        with pytest.raises(ValueError, match=f"capacity: expected 0 to 2147483647, found {capacity}"):
            kf.RecordBatchBuilder(capacity=capacity)
    assert builder.capacity == 4096
    assert [row.key for row in ref.read_rows(builder.build())] == [b"k"]


@pytest.mark.parametrize("capacity", [0, 60])
def test_capacity_when_less_than_a_header_takes_then_that(capacity):
    assert kf.RecordBatchBuilder(capacity=capacity).capacity == 61


# Contingency


def test_contingency_factor_when_given_then_the_estimate_and_the_room_follow():
    sizes = {}
    for factor in (0.5, 1.0, 1.05, 2.0):
        builder = kf.RecordBatchBuilder(
            codec=kf.Codec.GZIP, estimated_ratio=0.5, contingency_factor=factor, batch_size=10_000
        )
        while builder.has_room_for(DAY, None, bytes(90)):
            builder.append(DAY, None, bytes(90))
        assert builder.estimated_size == pytest.approx(61 + builder.size_in_bytes * 0.5 * factor, abs=2)
        sizes[factor] = builder.size_in_bytes
        builder.contingency_factor = 1.0
        assert builder.estimated_size == pytest.approx(61 + builder.size_in_bytes * 0.5, abs=2)
    assert sorted(sizes.values(), reverse=True) == list(sizes.values())


def test_contingency_factor_when_all_is_beyond_sense_then_an_estimate_beyond_any_batch():
    builder = kf.RecordBatchBuilder(
        codec=kf.Codec.LZ4, estimated_ratio=2**31, contingency_factor=2**31, batch_size=2**31
    )
    builder.append(DAY, None, bytes(10_000))
    assert builder.estimated_size > 2**61
    assert not builder.has_room_for(DAY, None, None)


@pytest.mark.parametrize("factor", [0.0, -1.0, float("nan"), float("inf")])
def test_contingency_factor_when_impossible_then_value_error(factor):
    with pytest.raises(ValueError, match="contingency_factor: expected more than 0"):
        kf.RecordBatchBuilder(contingency_factor=factor)
    builder = kf.RecordBatchBuilder()
    with pytest.raises(ValueError, match="contingency_factor"):
        builder.contingency_factor = factor
    assert builder.contingency_factor == 1.05


def test_max_record_size_when_records_are_appended_then_that_of_the_largest():
    builder = kf.RecordBatchBuilder()
    assert builder.max_record_size == 0
    sizes = []
    for length in (10, 300, 0, 299):
        before = builder.size_in_bytes
        builder.append(0, None, bytes(length))
        sizes.append(builder.size_in_bytes - before)
        assert builder.max_record_size == max(sizes)
