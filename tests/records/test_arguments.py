"""What the public functions take: codecs by name, datetimes for milliseconds; and how they name what they refuse."""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from datetime import datetime, timezone
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import crc32c as other_crc32c
import numpy as np
import pytest

import kafkafmt as kf
from _kafkafmt.records.key_table import KeySet
from kafkafmt import memory
from kafkafmt.log import LogDirectory, PartitionLog, PartitionLogWriter
from records.samples import DAY, EVERY_KIND, SAMPLES

NAMES = [codec.name for codec in kf.Codec]
MOMENT = datetime.fromtimestamp(DAY // 1000, timezone.utc)
NAIVE = datetime(2024, 1, 1)
BATCH = SAMPLES["v2 none"]


def built(**options: Any) -> bytes:
    builder = kf.RecordBatchBuilder(**options)
    builder.append(DAY, b"key", b"value" * 20)
    return builder.build()


@pytest.mark.parametrize("name", [form for name in NAMES for form in (name.lower(), name, name.title())])
def test_codec_when_given_by_name_then_as_the_codec(name: str) -> None:
    codec = kf.Codec[name.upper()]
    assert kf.Codec(name) is codec
    assert kf.RecordBatchBuilder(codec=name).codec is codec
    assert built(codec=name) == built(codec=codec)
    assert kf.codecs.decompress(name, kf.codecs.compress(name, b"value")) == b"value"
    assert kf.codecs.open_stream(name, kf.codecs.compress(codec, b"value")).read(9) == b"value"
    (batch,) = kf.MemoryRecords(built()).recompress(name).records.batches()
    assert batch.codec is codec
    assert kf.AccumulatorOptions(codec=name) == kf.AccumulatorOptions(codec=codec)
    assert kf.AccumulatorOptions(codec=name).codec is codec
    assert kf.ConversionOptions(None, codec=name).codec is codec
    columns = {"timestamps": np.array([DAY]), "keys": None, "values": None}
    (data,) = kf.build_batches(**columns, codec=name)
    assert next(kf.MemoryRecords(data).batches()).codec is codec


def test_zstd_fallback_when_given_by_name_then_as_the_codec() -> None:
    records = kf.MemoryRecords(built(codec="zstd"))
    (batch,) = records.down_convert(1, zstd_fallback="lz4").records.batches()
    assert batch.codec is kf.Codec.LZ4
    lazy = kf.LazyDownConvertRecords(records, 1, zstd_fallback="lz4")
    assert bytes(batch) == b"".join(lazy.chunks())


@pytest.mark.parametrize("make", [kf.CompressionRatioEstimator, kf.RecentRatioEstimator])
def test_estimator_when_set_then_expects_that_ratio_and_goes_on_from_it(
    make: Callable[[], kf.CompressionRatioEstimator | kf.RecentRatioEstimator],
) -> None:
    estimator = make()
    estimator.observe("clicks", kf.Codec.LZ4, 1.7)
    estimator.set("clicks", "lz4", 0.25)
    assert estimator.estimate("clicks", kf.Codec.LZ4) == estimator.estimate("clicks", "LZ4") == 0.25
    assert estimator.estimate("clicks", "gzip") == estimator.estimate("views", "lz4") == 1.0
    assert estimator.observe("clicks", "lz4", 0.5) == 0.5
    for ratio in (-0.1, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="ratio"):
            estimator.set("clicks", "lz4", ratio)
    estimator.reset("clicks")
    assert estimator.estimate("clicks", "lz4") == 1.0


def test_options_when_copied_or_pickled_then_the_codec_stays() -> None:
    for options in (kf.AccumulatorOptions(codec="lz4"), kf.ConversionOptions(1, codec="lz4")):
        assert pickle.loads(pickle.dumps(options)) == options
        assert replace(options, level=3).codec is kf.Codec.LZ4
        assert "LZ4" in repr(options)
    assert kf.AccumulatorOptions().codec is kf.Codec.NONE
    assert kf.ConversionOptions(1).codec is None


TAKE_CODEC: dict[str, Callable[[Any], Any]] = {
    "builder": lambda codec: kf.RecordBatchBuilder(codec=codec),
    "recompress": lambda codec: kf.MemoryRecords(BATCH).recompress(codec),
    "compress": lambda codec: kf.codecs.compress(codec, b""),
    "decompress": lambda codec: kf.codecs.decompress(codec, b""),
    "open_stream": lambda codec: kf.codecs.open_stream(codec, b""),
    "accumulator": lambda codec: kf.AccumulatorOptions(codec=codec),
    "conversion": lambda codec: kf.ConversionOptions(1, codec=codec or "none"),
    "estimate": lambda codec: kf.CompressionRatioEstimator().estimate("clicks", codec),
    "set": lambda codec: kf.RecentRatioEstimator().set("clicks", codec, 1.0),
}


@pytest.mark.parametrize("take", TAKE_CODEC.values(), ids=TAKE_CODEC)
def test_codec_when_the_name_is_none_of_them_then_a_value_error_lists_them(
    take: Callable[[Any], Any],
) -> None:
    expected = "codec: expected one of none, gzip, snappy, lz4, zstd, found 'lz5'"
    with pytest.raises(ValueError, match=re.escape(expected)):
        take("lz5")


def test_zstd_fallback_when_the_name_is_none_then_the_error_names_the_argument() -> None:
    with pytest.raises(ValueError, match=r"zstd_fallback: expected one of none, .*, found 'lz5'"):
        kf.MemoryRecords(BATCH).down_convert(1, zstd_fallback="lz5")


@pytest.mark.parametrize("take", TAKE_CODEC.values(), ids=TAKE_CODEC)
def test_codec_when_it_is_of_another_type_then_a_type_error_names_it(take: Callable[[Any], Any]) -> None:
    with pytest.raises(TypeError, match="codec: expected a Codec or the name of one, found float"):
        take(1.5)


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "data int": (lambda: kf.MemoryRecords(5), "data: expected bytes or another buffer, found int"),  # type: ignore[arg-type]
    "data str": (lambda: kf.MemoryRecords("x"), "data: expected bytes or another buffer, found str"),  # type: ignore[arg-type]
    "data of objects": (
        lambda: kf.MemoryRecords(np.array([object()])),
        "data: expected a buffer of bytes, found ndarray of Python objects",
    ),
    "data of structures": (
        lambda: kf.MemoryRecords(np.zeros(1, [("number", "i4"), ("object", "O")])),
        "data: expected a buffer of bytes, found ndarray of Python objects",
    ),
    "filesystem": (
        lambda: kf.RemoteRecords(None, "x"),  # type: ignore[arg-type]
        "filesystem: expected a pyarrow.fs.FileSystem, found NoneType",
    ),
    "compress": (lambda: kf.codecs.compress("lz4", 5), "data: expected bytes or another buffer, found int"),  # type: ignore[arg-type]
    "crc32c": (lambda: kf.crc32c("x"), "data: expected bytes or another buffer, found str"),  # type: ignore[arg-type]
    "crc32c value": (lambda: kf.crc32c(b"", "x"), "value: expected a CRC as an int, found str"),  # type: ignore[arg-type]
    "to_magic": (lambda: kf.MemoryRecords(BATCH).down_convert("1"), "to_magic: expected an int, found str"),  # type: ignore[arg-type]
    "first_offset": (
        lambda: kf.MemoryRecords(BATCH).down_convert(1, 1.5),  # type: ignore[arg-type]
        "first_offset: expected an int, found float",
    ),
    "lazy records": (
        lambda: kf.LazyDownConvertRecords(BATCH, 1),  # type: ignore[arg-type]
        "records: expected MemoryRecords, FileRecords or other Records, found bytes",
    ),
    "lazy to_magic": (
        lambda: kf.LazyDownConvertRecords(kf.MemoryRecords(BATCH), None),  # type: ignore[arg-type]
        "to_magic: expected an int, found NoneType",
    ),
    "chunk_size": (
        lambda: kf.LazyDownConvertRecords(kf.MemoryRecords(BATCH), 1, chunk_size="1m"),  # type: ignore[arg-type]
        "chunk_size: expected an int, found str",
    ),
    "magic": (lambda: kf.RecordBatchBuilder("2"), "magic: expected an int, found str"),  # type: ignore[arg-type]
    "base_offset": (
        lambda: kf.RecordBatchBuilder(base_offset="2"),
        "base_offset: expected an int, found str",
    ),  # type: ignore[arg-type]
    "a batch of no run": (lambda: kf.RecordBatch(None, 0), "run"),  # type: ignore[arg-type]
    "last_offset": (
        lambda: kf.RecordBatchBuilder(last_offset=1.9),
        "last_offset: expected an int, found float",
    ),  # type: ignore[arg-type]
    "leader epoch": (
        lambda: kf.RecordBatchBuilder(partition_leader_epoch=2.7),  # type: ignore[arg-type]
        "partition_leader_epoch: expected an int, found float",
    ),
    "timestamp_type": (
        lambda: kf.RecordBatchBuilder(timestamp_type=None),  # type: ignore[arg-type]
        "timestamp_type: expected an int, found NoneType",
    ),
    "no pairs of headers": (
        lambda: kf.RecordBatchBuilder().append(0, None, None, [("a",)]),  # type: ignore[list-item]
        "headers: expected pairs of key and value, found ('a',)",
    ),
    "header value": (
        lambda: kf.RecordBatchBuilder().append(0, None, None, [("a", "b")]),  # type: ignore[list-item]
        "headers: expected bytes or None in each pair, found str",
    ),
    "header key": (
        lambda: kf.RecordBatchBuilder().append(0, None, None, [(5, b"b")]),  # type: ignore[list-item]
        "headers: expected a str or bytes in each pair, found int",
    ),
    "partition": (
        lambda: kf.MemoryRecords(BATCH, topic_partition="x"),  # type: ignore[arg-type]
        "topic_partition: expected a topic and a partition, found 'x'",
    ),
    "max_decompressed_bytes": (
        lambda: kf.MemoryRecords(BATCH, max_decompressed_bytes=None),  # type: ignore[arg-type]
        "max_decompressed_bytes: expected an int, found NoneType",
    ),
    "position after": (
        lambda: kf.MemoryRecords(BATCH).position_after(ValueError()),  # type: ignore[arg-type]
        "error: expected a KafkaFormatError, found ValueError",
    ),
    "response": (
        lambda: kf.FetchResponse([5]),  # type: ignore[list-item]
        "parts: expected buffers and Records, found int",
    ),
    "codec": (
        lambda: kf.codecs.compress(1.0, b""),
        "codec: expected a Codec or the name of one, found float",
    ),  # type: ignore[arg-type]
    "level": (lambda: kf.codecs.compress("zstd", b"", level=3.0), "level: expected an int, found float"),  # type: ignore[arg-type]
    "split size": (
        lambda: kf.split_batch(next(kf.MemoryRecords(BATCH).batches()), 1.5),  # type: ignore[arg-type]
        "split_batch_size: expected an int, found float",
    ),
    "trim": (
        lambda: next(kf.MemoryRecords(BATCH).batches()).trim("1"),  # type: ignore[arg-type]
        "first_offset: expected an int, found str",
    ),
    "split": (lambda: kf.split_batch(BATCH, 100), "batch: expected a RecordBatch, found bytes"),  # type: ignore[arg-type]
    "split to fit": (lambda: kf.split_to_fit(BATCH, 100), "batch: expected a RecordBatch, found bytes"),  # type: ignore[arg-type]
    "start": (lambda: kf.FileRecords("x.log", "0"), "start: expected an int, found str"),  # type: ignore[arg-type]
    "path": (lambda: kf.FileRecords(b"x.log"), "path: expected a str or a path, found bytes"),  # type: ignore[arg-type]
    "log path": (lambda: PartitionLog(7), "path: expected a str or a path, found int"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize(("call", "told"), REFUSED.values(), ids=REFUSED)
def test_argument_when_of_another_type_then_a_type_error_names_it(call: Callable[[], Any], told: str) -> None:
    with pytest.raises(TypeError, match=re.escape(told)):
        call()


OUT_OF_RANGE: dict[str, tuple[Callable[[], Any], str]] = {
    "run_bytes": (lambda: kf.MemoryRecords(BATCH).runs(run_bytes=0), "run_bytes: expected 1 to"),
    "position": (lambda: kf.MemoryRecords(BATCH).runs(-1), "position: expected 0 to"),
    "position of whole runs": (lambda: kf.MemoryRecords(BATCH).whole_runs(-1), "position: expected 0 to"),
    "chunk_size": (
        lambda: kf.ConvertedChunks(kf.MemoryRecords(BATCH), kf.ConversionOptions(1), chunk_size=0),
        "chunk_size: expected 1 to",
    ),
    "position of chunks": (
        lambda: kf.ConvertedChunks(kf.MemoryRecords(BATCH), kf.ConversionOptions(1), 10**9),
        "position: expected a batch's beginning within",
    ),
    "base_offset": (lambda: kf.RecordBatchBuilder(base_offset=2**63), "base_offset: expected -9223"),
    "producer_id": (lambda: kf.RecordBatchBuilder(producer_id=2**63), "producer_id: expected -9223"),
    "capacity": (lambda: kf.RecordBatchBuilder(capacity=2**31), "capacity: expected 0 to 2147483647"),
    "batch_size": (lambda: kf.RecordBatchBuilder(batch_size=-1), "batch_size: expected 0 to"),
    "first_offset": (lambda: kf.MemoryRecords(BATCH).down_convert(1, 2**63), "first_offset: expected -9223"),
    "payload": (lambda: kf.codecs.open_stream("none", b"abc").read(0), "size: expected 1 or more, found 0"),
    "limit_bytes": (
        lambda: kf.LazyDownConvertRecords(kf.MemoryRecords(BATCH), 1, limit_bytes=-1),
        "limit_bytes: expected 0 to",
    ),
}


@pytest.mark.parametrize(("call", "told"), OUT_OF_RANGE.values(), ids=OUT_OF_RANGE)
def test_argument_when_out_of_range_then_a_value_error_names_it(call: Callable[[], Any], told: str) -> None:
    with pytest.raises(ValueError, match=re.escape(told)):
        call()


GAPS = memoryview(b"abcd")[::2]
ARRAY_WITH_GAPS = np.zeros((4, 4), np.uint8)[:, 1]
TAKE_BYTES: dict[str, Callable[[Any], Any]] = {
    "data": kf.MemoryRecords,
    "data of crc32c": kf.crc32c,
    "data of compress": lambda data: kf.codecs.compress("lz4", data),
    "key": lambda key: kf.RecordBatchBuilder().append(0, key, None),
    "value": lambda value: kf.RecordBatchBuilder().append(0, None, value),
    "value of an accumulator": lambda value: kf.RecordAccumulator().append(
        ("a", 0), 0, None, value, now_ms=0
    ),
    "headers": lambda value: kf.RecordBatchBuilder().append(0, None, None, [("a", value)]),
}


@pytest.mark.parametrize("data", [GAPS, ARRAY_WITH_GAPS], ids=["memoryview", "array"])
@pytest.mark.parametrize(("name", "take"), TAKE_BYTES.items(), ids=TAKE_BYTES)
def test_buffer_when_it_is_not_contiguous_then_a_buffer_error_names_it(
    name: str, take: Callable[[Any], Any], data: object
) -> None:
    argument = name.partition(" ")[0]
    with pytest.raises(
        BufferError, match=f"^{argument}: expected a C-contiguous buffer, found {type(data).__name__}"
    ):
        take(data)


def test_append_when_a_number_or_a_header_has_no_encoding_then_the_error_names_it() -> None:
    builder = kf.RecordBatchBuilder()
    with pytest.raises(
        OverflowError, match="timestamp: expected a number of at most 64 bits, found 9223372036854775808"
    ):
        builder.append(2**63, None, None)
    with pytest.raises(ValueError, match=r"headers: expected keys that UTF-8 can encode, found '\\ud800'"):
        builder.append(0, None, None, [("\ud800", b"")])
    last = kf.RecordBatchBuilder(base_offset=2**63 - 1)
    last.append(0, None, None)
    with pytest.raises(ValueError, match="offset: expected no record after offset 9223372036854775807"):
        last.append(0, None, None)


def test_objects_when_only_allocated_then_a_type_error_and_no_memory_is_read() -> None:
    reservation = memory.Reservation.__new__(memory.Reservation)
    other = kf.MemoryBudget(10).reserve(1)
    for call in (
        reservation.release,
        lambda: reservation.resize(1),
        lambda: reservation.try_resize(1),
        lambda: reservation.split([1]),
        lambda: reservation.absorb(other),
    ):
        with pytest.raises(TypeError, match=r"create a reservation with MemoryBudget\.reserve"):
            call()
    with pytest.raises(TypeError):
        KeySet.__new__(KeySet)  # type: ignore[call-arg]


def test_partition_when_it_is_a_tuple_of_another_library_then_as_ours() -> None:
    records = kf.MemoryRecords(BATCH, topic_partition=("views", 3))  # type: ignore[arg-type]
    assert records.topic_partition == kf.TopicPartition("views", 3)
    assert records.to_arrow(["topic", "partition"]).to_pylist()[0] == {"topic": "views", "partition": 3}


@pytest.mark.parametrize(
    "name", ["views-\u0663", "views-00003", "views-", "views-2147483648", "views-99999999999"]
)
def test_folder_when_no_broker_names_one_so_then_of_no_partition(name: str) -> None:
    assert kf.TopicPartition.from_folder_name(name) is None


def test_folder_when_of_the_last_partition_then_of_that() -> None:
    assert kf.TopicPartition.from_folder_name("views-2147483647") == ("views", 2**31 - 1)


def test_columns_when_compared_then_only_equal_to_themselves() -> None:
    columns = [kf.MemoryRecords(BATCH).to_numpy(["key", "headers"]) for _ in range(2)]
    for name in columns[0]:
        assert columns[0][name] == columns[0][name]
        assert columns[0][name] != columns[1][name]
        assert len({columns[0][name], columns[1][name]}) == 2


def test_converted_records_when_compared_then_only_equal_to_themselves() -> None:
    one, other = (kf.MemoryRecords(BATCH).down_convert(2) for _ in range(2))
    assert (one == other, len({one, other, one})) == (False, 2)


def test_response_when_parts_are_any_buffers_then_their_bytes() -> None:
    response = kf.FetchResponse([b"a", bytearray(b"b"), memoryview(b"cd")])
    assert (b"".join(map(bytes, response.parts)), response.size_in_bytes) == (b"abcd", 4)  # type: ignore[arg-type]


def test_types_of_results_when_imported_from_public_modules_then_name_them() -> None:
    (run,) = kf.MemoryRecords(BATCH).runs()
    assert type(run) is kf.BatchRun
    assert [type(one) for one in kf.BatchForwarder().forward(run)] == [kf.ForwardedRun]
    assert type(kf.MemoryBudget(10).reserve(1)) is memory.Reservation
    limits = kf.accumulator.RequestLimits(max_batches=1, max_bytes=2**20)
    accumulator = kf.RecordAccumulator()
    accumulator.append_batches(kf.TopicPartition("views", 0), run, request_limits=limits, now_ms=0)
    sent = kf.LazyDownConvertRecords(kf.MemoryRecords(BATCH), 1).to_send(kf.ChunkMemory(1024))
    assert type(sent) is kf.LazyDownConvertSend


@pytest.mark.parametrize("timestamp", [2**62, -(2**62)])
def test_to_arrow_when_a_timestamp_is_beyond_its_range_then_the_error_has_the_range(timestamp: int) -> None:
    batch = bytearray(BATCH)
    batch[27:35] = batch[35:43] = timestamp.to_bytes(8, "big", signed=True)  # base and max timestamp
    message = f"expected -9223372036854775 to 9223372036854775 ms, found {timestamp}"
    with pytest.raises(kf.InvalidRecordError, match=message):
        kf.MemoryRecords(batch).to_arrow(verify=False)


def test_names_when_listed_then_those_that_are_imported_late_are_among_them() -> None:
    assert {"scan", "Scan", "decode", "MemoryRecords"} <= {*dir(kf)}


@pytest.fixture
def log(tmp_path: Path) -> PartitionLog:
    with PartitionLogWriter(tmp_path / "views-0") as writer:
        writer.append(built())
        writer.append(
            built(base_offset=1, timestamp_type=kf.TimestampType.LOG_APPEND_TIME, log_append_time=DAY + 1000)
        )
    return LogDirectory(tmp_path).partition("views", 0)


def test_find_timestamp_when_it_is_a_datetime_then_as_its_milliseconds(log: PartitionLog) -> None:
    assert log.find_timestamp(MOMENT) == log.find_timestamp(DAY) == (DAY, 0)
    assert log.segments()[0].find_timestamp(MOMENT) == (DAY, 0)
    with pytest.raises(ValueError, match="timestamp: expected a datetime with a timezone, found the naive"):
        log.find_timestamp(NAIVE)
    with pytest.raises(
        TypeError, match="timestamp: expected milliseconds as an int, or a datetime, found str"
    ):
        log.find_timestamp("today")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["log_append_time", "delete_horizon_ms"])
def test_builder_when_its_times_are_datetimes_then_as_their_milliseconds(name: str) -> None:
    options: dict[str, Any] = {"timestamp_type": kf.TimestampType.LOG_APPEND_TIME} if "log" in name else {}
    assert built(**options, **{name: MOMENT}) == built(**options, **{name: DAY})
    with pytest.raises(ValueError, match=f"{name}: expected a datetime with a timezone"):
        built(**options, **{name: NAIVE})


def test_marker_when_its_timestamp_is_a_datetime_then_as_its_milliseconds() -> None:
    def marker(timestamp: int | datetime) -> bytes:
        state = {"producer_id": 7, "producer_epoch": 0, "is_transactional": True, "is_control": True}
        builder = kf.RecordBatchBuilder(**state)
        builder.append_end_transaction_marker(timestamp, commit=True)
        return builder.build()

    assert marker(MOMENT) == marker(DAY)
    with pytest.raises(ValueError, match="timestamp: expected a datetime with a timezone"):
        marker(NAIVE)


def test_accumulator_when_a_timestamp_is_a_datetime_then_record_and_future_have_its_milliseconds() -> None:
    accumulator = kf.RecordAccumulator(kf.AccumulatorOptions(codec="lz4"))
    partition = kf.TopicPartition("views", 0)
    appended = accumulator.append(partition, MOMENT, None, b"value", now_ms=0)
    assert appended is not None
    assert appended[0].timestamp == DAY
    with pytest.raises(ValueError, match="timestamp: expected a datetime with a timezone"):
        accumulator.append(partition, NAIVE, None, b"value", now_ms=0)


@pytest.mark.thread_unsafe
def test_repr_when_printed_then_names_and_no_numbers(log: PartitionLog, tmp_path: Path) -> None:
    folder = tmp_path / "views-0"
    path = log.segments()[0].path
    records = kf.MemoryRecords(built(codec="zstd"), topic_partition=kf.TopicPartition("views", 0))
    size = records.size_in_bytes
    assert repr(records) == f"MemoryRecords(size_in_bytes={size}, topic_partition=views-0)"
    assert "codec=ZSTD, timestamp_type=CREATE_TIME" in repr(next(records.batches()))
    with kf.FileRecords(path) as file:
        size = file.size_in_bytes
        assert repr(file) == f"FileRecords({str(path)!r}, start=0, end={size}, topic_partition=views-0)"
    lazy = kf.LazyDownConvertRecords(records, 1, zstd_fallback="lz4")
    options = f"to_magic=1, first_offset=0, zstd_fallback=LZ4, size_in_bytes={lazy.size_in_bytes}"
    assert repr(lazy) == f"LazyDownConvertRecords({records!r}, {options})"
    builder = repr(kf.RecordBatchBuilder(codec="gzip"))
    named = "magic=2, codec=GZIP, timestamp_type=CREATE_TIME, base_offset=0, records=0"
    assert builder.startswith(f"RecordBatchBuilder({named}, size_in_bytes=")
    assert repr(log) == f"PartitionLog({str(folder)!r}, topic_partition=views-0)"
    assert repr(LogDirectory(tmp_path)) == f"LogDirectory({str(tmp_path)!r})"


@pytest.mark.parametrize("offset", [1.5, "x"])
def test_offset_when_it_is_no_int_then_a_type_error(log: PartitionLog, offset: Any) -> None:
    with pytest.raises(TypeError, match="start_offset: expected an int"):
        next(log.records(offset))
    with pytest.raises(TypeError, match="offset: expected an int"):
        log.find_offset(offset)


@pytest.mark.thread_unsafe
def test_partition_when_topic_and_number_are_given_then_as_the_pair(
    log: PartitionLog, tmp_path: Path
) -> None:
    directory = LogDirectory(tmp_path)
    assert directory.partition("views", 0).path == directory.partition(("views", 0)).path == log.path
    with pytest.raises(FileNotFoundError, match="views-1"):
        directory.partition("views", 1)
    for arguments, told in [
        (("views",), "number: expected that of a partition of topic 'views'"),
        (("views", "0"), "number: expected an int, found str"),
        ((("views", 0), 0), "number: expected none beside"),
        ((7,), "topic: expected a name, or a pair of topic and number, found 7"),
    ]:
        with pytest.raises(TypeError, match=re.escape(told)):
            directory.partition(*arguments)  # type: ignore[call-overload]


def test_writers_when_given_a_batch_then_append_it(tmp_path: Path) -> None:
    first, second = kf.MemoryRecords(built() + built(base_offset=1)).batches()
    with PartitionLogWriter(tmp_path / "views-0") as writer:
        writer.append(first)
    with kf.log.LogAppender(tmp_path / "views-0") as appender:
        appender.append(second)
    assert [record.offset for record in LogDirectory(tmp_path).partition("views", 0).records()] == [0, 1]
    with PartitionLogWriter(tmp_path / "views-1") as writer, pytest.raises(TypeError, match="data: expected"):
        writer.append(5)  # type: ignore[arg-type]


@pytest.mark.parametrize("size", [0, 1, 3, 4, 5, 63, 64, 1000, 100_000])
def test_crc32c_when_computed_in_steps_then_as_at_once(size: int) -> None:
    data = np.random.default_rng(size).bytes(size)
    whole = other_crc32c.crc32c(data)
    assert kf.crc32c(data) == whole
    for cut in {0, 1, size // 3, size // 2, size - 1, size} & set(range(size + 1)):
        assert kf.crc32c(memoryview(data)[cut:], kf.crc32c(data[:cut])) == whole
        assert kf.crc32c(data[cut:], 0xFFFFFFFF) == other_crc32c.crc32c(data[cut:], 0xFFFFFFFF)


def test_crc32c_when_the_buffer_has_items_then_of_their_bytes_and_of_no_crc_a_value_error() -> None:
    numbers = np.arange(10)
    assert kf.crc32c(numbers) == kf.crc32c(numbers.tobytes())
    for value in (-1, 1 << 32):
        with pytest.raises(ValueError, match=f"value: expected a CRC of 0 to .*, found {value}"):
            kf.crc32c(b"", value)


def test_control_record_when_named_from_the_package_then_what_control_returns() -> None:
    (marker,) = (record for record in kf.MemoryRecords(EVERY_KIND).records(control=True) if record.is_control)
    assert isinstance(marker.control, kf.ControlRecord)
    assert isinstance(marker.control.type, kf.ControlRecordType)


def values_of(records: list[kf.Record]) -> list[kf.Record]:
    return records


def test_record_when_sent_to_another_process_and_back_then_the_same() -> None:
    records = [record for batch in kf.MemoryRecords(EVERY_KIND).batches() for record in batch]
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        assert pool.submit(values_of, records).result() == records
