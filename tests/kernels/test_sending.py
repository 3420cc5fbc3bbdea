"""The native path of a producer: what it takes, what it leaves alone, and that both paths write the same."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kafkafmt as kf
from _kafkafmt.client.murmur2 import murmur2
from _kafkafmt.client.sending import ManyRecords
from client.accumulator.partitions import DAY, Sender, assert_nothing_left, numbered
from client.native_sending import TOPIC, GeneralPath, sender_of
from kafkafmt.client.accumulator import RecordsFuture
from kafkafmt.client.accumulator.future import RecordSpan

buffers = st.sampled_from([bytes, bytearray, memoryview])
data = st.none() | st.builds(lambda kind, content: kind(content), buffers, st.binary(max_size=300))
headers = st.none() | st.lists(st.tuples(st.text(max_size=8), st.binary(max_size=8)), max_size=4)
records = st.tuples(data, data, headers, st.integers(-1, 2**62)).filter(lambda row: row[:2] != (None, None))


def flushed(sender: Any) -> dict[int, list[kf.Record]]:
    """Send all that waits; return the records by partition."""
    sending = Sender(sender.accumulator)
    sender.accumulator.begin_flush()
    sending.send()
    sender.accumulator.await_flush_completion(0)
    assert_nothing_left(sender.accumulator)
    return {tp.partition: log.records for tp, log in sending.logs.items()}


def as_sent(record: kf.Record) -> tuple[Any, ...]:
    return record.value, record.key, list(record.headers), record.timestamp


def as_given(row: tuple[Any, ...]) -> tuple[Any, ...]:
    value, key, headers, timestamp = row
    return (
        None if value is None else bytes(value),
        None if key is None else bytes(key),
        headers or [],
        timestamp,
    )


@given(st.lists(records, max_size=20), st.sampled_from([100, 1000, 16384]))
def test_records_when_sent_natively_then_they_arrive_with_all_that_was_given(rows, batch_size):
    sender = sender_of(1, batch_size=batch_size, linger_ms=1000)
    futures = [sender.send(TOPIC, value, key, headers, None, at) for value, key, headers, at in rows]
    sent = flushed(sender).get(0, [])
    assert [as_sent(record) for record in sent] == [as_given(row) for row in rows]
    found = [future.get(0) for future in futures]
    assert [metadata.offset for metadata in found] == list(range(len(rows)))
    assert [(one.serialized_value_size, one.serialized_key_size, one.timestamp) for one in found] == [
        (-1 if value is None else len(value), -1 if key is None else len(key), at)
        for value, key, _, at in rows
    ]


@given(st.lists(records, min_size=1, max_size=20), st.sampled_from([0, 100, 1000]))
def test_batches_when_appended_natively_then_they_are_those_of_the_general_path(rows, batch_size):
    native, general = (sender_of(1, batch_size=batch_size, linger_ms=1000) for _ in range(2))
    tp = kf.TopicPartition(TOPIC, 0)
    for value, key, headers, at in rows:
        native.accumulator.append(tp, at, key, value, headers or [], now_ms=0)
        general.accumulator._append(tp, at, key, value, headers or [], 0, None, False)
    drained = []
    for sender in (native, general):
        sender.accumulator.begin_flush()
        sending = Sender(sender.accumulator)
        sending.send()
        drained.append([bytes(batch.buffer) for batch in sending.logs[tp].batches])
    assert drained[0] == drained[1]


def test_keys_when_sent_then_to_the_partition_of_their_hash():
    sender = sender_of(7)
    keys = [kind(b"key %d" % number) for number in range(50) for kind in (bytes, bytearray, memoryview)]
    for key in [*keys, b""]:
        future = sender.send(TOPIC, b"v", key)
        assert future.batch.topic_partition == (TOPIC, (murmur2(key) & 0x7FFFFFFF) % 7)


def test_records_without_key_when_sent_then_all_partitions_get_some():
    sender = sender_of(4, batch_size=1000)
    for value in numbered(range(400)):
        sender.send(TOPIC, value)
    counts = [len(records) for records in flushed(sender).values()]
    assert len(counts) == 4
    assert min(counts) > 40


def test_partition_when_given_then_the_record_goes_there_whatever_its_key():
    sender = sender_of(4)
    assert {sender.send(TOPIC, b"v", b"%d" % n, partition=2).batch.topic_partition[1] for n in range(9)} == {
        2
    }


def test_timestamp_when_not_given_then_it_is_now():
    sender = sender_of()
    before = time.time_ns() // 1_000_000
    timestamp = sender.send(TOPIC, b"v").timestamp
    assert before <= timestamp <= time.time_ns() // 1_000_000


class Text(str):
    pass


@pytest.mark.parametrize(
    "arguments",
    [
        {"value": None},
        {"value": "text"},
        {"value": b"", "key": 1},
        {"value": np.zeros(3, np.uint8)},
        {"value": memoryview(b"abcd")[::2]},
        {"value": b"", "headers": (("a", b""),)},
        {"value": b"", "headers": ()},
        {"value": b"", "headers": [("a", None)]},
        {"value": b"", "headers": [["a", b""]]},
        {"value": b"", "headers": [(b"a", b"")]},
        {"value": b"", "headers": [("a",)]},
        {"value": b"", "headers": [("\ud800", b"")]},
        {"value": b"", "partition": 4},
        {"value": b"", "partition": -1},
        {"value": b"", "partition": np.int64(1)},
        {"value": b"", "timestamp_ms": 1.5},
        {"value": b"", "timestamp_ms": 2**63},
        {"value": bytes(1 << 20)},
        {"value": b"", "headers": [("a", bytes(1 << 20))]},
        {"value": b"", "topic": "another"},
        {"value": b"", "topic": Text(TOPIC)},
        {"value": b"", "topic": 5},
    ],
)
def test_record_when_it_needs_more_checks_then_it_is_left_to_the_general_path(arguments):
    sender = sender_of()
    for before in range(2):
        with pytest.raises(GeneralPath):
            sender.send(**{"topic": TOPIC, **arguments})
        assert sum(sender.accumulator.undelivered().values()) == before
        sender.send(TOPIC, b"v")


def test_released_memoryview_when_sent_then_it_is_left_to_the_general_path():
    view = memoryview(b"value")
    view.release()
    with pytest.raises(GeneralPath):
        sender_of().send(TOPIC, view)


def test_sender_when_closed_then_all_is_left_to_the_general_path():
    sender = sender_of()
    sender._closed = True
    with pytest.raises(GeneralPath):
        sender.send(TOPIC, b"v")


def test_bytearray_when_sent_then_it_may_change_afterwards():
    sender = sender_of(1)
    value = bytearray(b"before")
    for _ in range(2):
        sender.send(TOPIC, value)
    value.clear()
    assert [record.value for record in flushed(sender)[0]] == [b"before"] * 2


@pytest.mark.parametrize("codec", [kf.Codec.NONE, kf.Codec.LZ4])
def test_batch_when_full_then_it_is_compressed_by_the_thread_that_filled_it(codec):
    sender = sender_of(1, batch_size=500, linger_ms=1000, codec=codec)
    batches = {sender.send(TOPIC, bytes(100)).batch for _ in range(20)}
    full = [batch for batch in batches if batch.builder is None]
    assert len(full) >= len(batches) - 1
    assert all(batch.data is not None and not batch.is_closing for batch in full)
    assert sender.news >= len(batches)


# Many


def test_many_when_sent_then_each_record_has_its_offset_in_the_order_given():
    sender = sender_of(3, batch_size=300, linger_ms=1000)
    values, keys = numbered(range(500), 20), [b"%d" % (number % 50) for number in range(500)]
    records = sender.send_many(values, keys)
    assert records.count == len(records) == 500
    future = RecordsFuture([RecordSpan(*span) for span in records.spans_of_batches()], records.order())
    sent = flushed(sender)
    places = {record.value: place for log in sent.values() for place, record in enumerate(log)}
    assert future.get(0).tolist() == [places[value] for value in values]


def test_many_when_one_partition_is_given_then_they_are_in_order():
    sender = sender_of(4, batch_size=300, linger_ms=1000)
    records = sender.send_many(numbered(range(100), 20), partition=2)
    assert records.order() is None
    assert [record.value for record in flushed(sender)[2]] == numbered(range(100), 20)


def test_many_when_all_columns_are_given_then_records_have_them():
    sender = sender_of(1)
    rows = [(b"v%d" % n, b"k", [("h", b"%d" % n)] if n % 2 else None, DAY + n) for n in range(9)]
    sender.send_many(*zip(*rows, strict=True))
    assert [as_sent(record) for record in flushed(sender)[0]] == [as_given(row) for row in rows]


def test_many_when_timestamps_are_an_array_then_as_a_list():
    sender = sender_of(1)
    sender.send_many([b"v"] * 3, None, None, np.arange(3) + DAY)
    assert [record.timestamp for record in flushed(sender)[0]] == [DAY, DAY + 1, DAY + 2]


def test_many_when_one_needs_more_checks_then_it_stops_before_it():
    sender = sender_of(1)
    records = sender.send_many([b"a", b"b", "text", b"c"])
    assert records.count == 2
    assert records.next_record() == ("text", None, None, None)
    records.add(sender.send(TOPIC, b"other"))
    sender._send_next(TOPIC, records, None)
    assert records.count == 4
    with pytest.raises(IndexError):
        records.next_record()
    with pytest.raises(IndexError):
        records.add(sender.send(TOPIC, b"one too many"))


def test_many_when_there_are_none_then_none_are_sent():
    records = sender_of().send_many([])
    assert (len(records), records.count, records.spans_of_batches()) == (0, 0, [])


@pytest.mark.parametrize("name", ["keys", "headers", "timestamps_ms"])
def test_many_when_lengths_differ_then_the_column_is_named(name):
    columns = {"keys": None, "headers": None, "timestamps_ms": None, name: [None] * 2}
    with pytest.raises(ValueError, match=f"{name}: expected 3, one for each value, found 2"):
        ManyRecords([b""] * 3, *columns.values())
