"""The records of one partition's fetched bytes, taken in parts and in several forms, as kafka-python reads them."""

from __future__ import annotations

import platform
import random
import subprocess
import sys
from typing import Any

import kafka.record
import pytest
from kafka.consumer.fetcher import ConsumerRecord, Fetcher
from kafka.metrics import Metrics
from kafka.serializer import DeserializeWrapper

import kafkafmt as kf
import reference as ref
from _kafkafmt.batches.producer_state import set_producer_state
from _kafkafmt.client.consumer_records import consumer_records
from client.test_partition_batches import ALL, PARTITION, built, fetched, flipped
from kafkafmt.client.fetch_metrics import FetchMetrics
from kafkafmt.client.partition_records import (
    ArrowDecoder,
    Decoder,
    NumpyDecoder,
    PartitionRecords,
    RecordDecoder,
)
from kafkafmt.columns.read import COLUMNS
from kafkafmt.net import CorruptRecordError
from records.samples import DAY, empty_batch, end_marker

NO_METRICS = FetchMetrics(None, "")
RECORDS, ARROW, NUMPY = RecordDecoder(None, None), ArrowDecoder(), NumpyDecoder(COLUMNS)
FORMS = pytest.mark.parametrize("form", [RECORDS, ARROW, NUMPY], ids=["records", "arrow", "numpy"])


def records_of(data: bytes, offset: int = 0) -> PartitionRecords:
    return PartitionRecords(fetched(data, offset), NO_METRICS, check_crcs=True)


def offsets(taken: list[Any]) -> list[int]:
    """Of what was taken in any form."""
    found: list[int] = []
    for item in taken:
        if isinstance(item, ConsumerRecord):
            found.append(item.offset)
        elif isinstance(item, dict):
            found += item["offset"].tolist()
        else:
            found += item.column("offset").to_pylist()
    return found


def filled(count: int = 9, **options: Any) -> bytes:
    builder = kf.RecordBatchBuilder(partition_leader_epoch=4, **options)
    for number in range(count):
        key = b"key %d" % number if number % 3 else None
        headers = [("n", b"%d" % number), ("null", None)] if number % 2 else []
        builder.append(DAY + number, key, b"value %d" % number if number % 4 else None, headers)
    return bytes(builder.build())


def by_kafka_python(data: bytes, offset: int = 0) -> list[ConsumerRecord]:
    taken: list[ConsumerRecord] = Fetcher.PartitionRecords(
        offset, PARTITION, kafka.record.MemoryRecords(data)
    ).take(ALL)
    return taken


@pytest.mark.parametrize("codec", list(kf.Codec))
def test_records_are_those_of_kafka_python(codec: kf.Codec) -> None:
    data = filled(codec=codec) + empty_batch(9, 3) + filled(base_offset=13, codec=codec)
    for offset in range(22):
        taken = records_of(data, offset).take(RECORDS, ALL)
        assert taken == by_kafka_python(data, offset)
        assert all(type(record) is ConsumerRecord for record in taken)


@FORMS
def test_take_when_it_takes_some_then_the_position_is_after_them_and_the_rest_comes_next(
    form: Decoder,
) -> None:
    data = filled(3) + empty_batch(3, 2) + filled(4, base_offset=6, codec=kf.Codec.LZ4)
    for most in range(1, 8):
        part, found = records_of(data), []
        while part:
            taken = offsets(part.take(form, most))
            assert len(taken) <= most
            found += taken
            if taken and part:
                assert part.next_fetch_offset in (taken[-1] + 1, 6)
                assert part.leader_epoch == 4
        assert found == [0, 1, 2, 6, 7, 8, 9]
        assert (part.next_fetch_offset, part.records_read, part.bytes_left) == (10, 7, 0)


def test_take_when_forms_take_turns_then_each_record_comes_once(seed: int) -> None:
    chance = random.Random(seed)
    data = filled(20, codec=kf.Codec.GZIP) + filled(20, base_offset=20)
    part, found = records_of(data, 3), []
    while part:
        found += offsets(part.take(chance.choice([RECORDS, ARROW, NUMPY]), chance.randrange(1, 7)))
    assert found == list(range(3, 40))


@FORMS
def test_take_when_only_markers_were_fetched_then_the_position_moves_after_them(form: Decoder) -> None:
    part = records_of(end_marker(10, commit=True) + end_marker(11, commit=True), 10)
    assert (part.take(form, ALL), part.next_fetch_offset, bool(part)) == ([], 12, False)


@FORMS
def test_take_when_a_batch_is_damaged_then_the_records_before_come_first(form: Decoder) -> None:
    part = records_of(built(0, 2) + flipped(built(2, 2)) + built(7))
    assert offsets(part.take(form, ALL)) == [0, 1]
    with pytest.raises(CorruptRecordError) as caught:
        part.take(form, ALL)
    assert (caught.value.offset, caught.value.next_offset, bool(part)) == (2, 7, False)


@FORMS
@pytest.mark.parametrize("codec", [kf.Codec.ZSTD, kf.Codec.NONE], ids=["payload", "records"])
def test_take_when_records_cannot_be_read_then_those_before_come_first(
    form: Decoder, codec: kf.Codec
) -> None:
    """The CRC holds, and the records are no zstd, or not as many as the header says."""
    batch = bytearray(built(2, 3))
    batch[22] |= codec
    if not codec:
        batch[60] += 1
    set_producer_state(batch, -1, -1, -1)
    part = records_of(built(0, 2) + bytes(batch) + built(5))
    assert offsets(part.take(form, ALL)) == [0, 1]
    assert part.next_fetch_offset == 2
    with pytest.raises(CorruptRecordError, match="topic-3 at offset 2") as caught:
        part.take(form, ALL)
    assert caught.value.next_offset == 5


@FORMS
@pytest.mark.parametrize("checks", [True, False])
def test_take_when_a_message_in_a_wrapper_has_a_wrong_crc_then_an_error_unless_it_is_not_checked(
    form: Decoder, checks: bool
) -> None:
    """The CRC of the wrapper holds."""
    rows = [ref.Row(number, DAY + number, None, b"value") for number in range(3)]
    inner = [
        ref.message(1, row.offset, row.timestamp, None, row.value, crc=row.offset or None) for row in rows
    ]
    data = ref.wrapper(1, ref.LZ4, rows, inner=b"".join(inner))
    part = PartitionRecords(fetched(data), NO_METRICS, check_crcs=checks)
    if checks:
        with pytest.raises(CorruptRecordError, match="CRC mismatch of an inner message"):
            part.take(form, ALL)
    else:
        assert offsets(part.take(form, ALL)) == [0, 1, 2]


def with_timestamps(*timestamps: int, codec: kf.Codec = kf.Codec.NONE) -> bytes:
    builder = kf.RecordBatchBuilder(codec=codec)
    for timestamp in timestamps:
        builder.append(timestamp, None, b"value")
    return bytes(builder.build())


LAST_OF_ARROW = (2**63 - 1) // 1000


@pytest.mark.parametrize("codec", [kf.Codec.NONE, kf.Codec.LZ4])
def test_take_when_arrow_cannot_hold_a_timestamp_then_the_records_before_come_first(codec: kf.Codec) -> None:
    beyond = LAST_OF_ARROW + 1
    part = records_of(with_timestamps(DAY, LAST_OF_ARROW, beyond, DAY, beyond + 1, DAY, codec=codec))
    assert offsets(part.take(ARROW, ALL)) == [0, 1]
    for _ in range(2):  # the position stays
        with pytest.raises(
            kf.InvalidRecordError, match=rf"^topic-3 at offset 2: .*found {beyond} ms"
        ) as caught:
            part.take(ARROW, ALL)
        assert not isinstance(caught.value, kf.CorruptRecordError)
        assert (part.next_fetch_offset, bool(part)) == (2, True)
    assert [record.timestamp for record in part.take(RECORDS, 1)] == [beyond]
    assert offsets(part.take(ARROW, ALL)) == [3]
    with pytest.raises(kf.InvalidRecordError, match=rf"^topic-3 at offset 4: .*found {beyond + 1} ms"):
        part.take(ARROW, 1)
    assert offsets(part.take(NUMPY, 1)) == [4]
    assert offsets(part.take(ARROW, ALL)) == [5]


def test_take_when_the_position_is_after_a_timestamp_that_arrow_cannot_hold_then_returns_the_rest() -> None:
    part = records_of(with_timestamps(DAY, LAST_OF_ARROW + 1, DAY), 2)
    assert offsets(part.take(ARROW, ALL)) == [2]


def test_deserializers_when_they_are_given_then_get_topic_headers_and_bytes() -> None:
    class Deserializer(DeserializeWrapper):  # type: ignore[misc]
        def deserialize(self, topic: str, headers: Any, data: bytes | None) -> Any:
            return topic, headers, data

    decoder = RecordDecoder(Deserializer(None), DeserializeWrapper(lambda data: data and data.decode()))
    for plain, found in zip(by_kafka_python(filled()), records_of(filled()).take(decoder, ALL), strict=True):
        assert found.key == ("topic", plain.headers, plain.key)
        assert found.value == (plain.value and plain.value.decode())
        assert found.serialized_value_size == plain.serialized_value_size


def test_a_deserializer_when_it_fails_then_the_records_before_come_first() -> None:
    decoder = RecordDecoder(None, DeserializeWrapper(lambda data: 1 // (data != b"2")))
    part = records_of(built(0, 5))
    assert offsets(part.take(decoder, ALL)) == [0, 1]
    assert part.next_fetch_offset == 2
    with pytest.raises(ZeroDivisionError):
        part.take(decoder, ALL)


def test_metrics_when_a_part_is_taken_then_have_its_bytes_and_records() -> None:
    registry = Metrics()
    part = PartitionRecords(fetched(built(0, 5)), FetchMetrics(registry, "consumer"), check_crcs=True)
    part.take(RECORDS, 5)
    part.drain()
    found = {name.name: metric.value() for name, metric in registry.metrics.items() if not name.tags}
    assert (found["records-per-request-avg"], found["fetch-size-max"]) == (5, len(built(0, 5)))


@pytest.mark.parametrize("wrong", [tuple, list, Any, str])
def test_consumer_records_when_the_type_has_other_fields_then_refuses_it(wrong: Any) -> None:
    with pytest.raises(TypeError):
        consumer_records(wrong, None, 0, 0, "topic", 0)


# In a process of its own: others have raised glibc's limits already.
POLLS = """
import resource
from kafkafmt.client.partition_records import RecordDecoder

decoder = RecordDecoder(None, None)
for _ in range(9):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    values = [bytes(1024) for _ in range(5000)]
    del values
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="about glibc")
def test_values_when_many_are_freed_at_a_time_then_the_next_ones_use_their_memory() -> None:
    """5 MiB of them are 1280 pages."""
    done = subprocess.run([sys.executable, "-c", POLLS], stdout=subprocess.PIPE, text=True, check=True)
    assert int(done.stdout) < 100
