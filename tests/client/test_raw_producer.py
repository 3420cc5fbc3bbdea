"""What a RawProducer sends is in the log of a real broker as it was, but for offsets and who sent it (KIP-712)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import kafka.errors
import pytest
from kafka.errors import KafkaTimeoutError
from kafka.partitioner import DefaultPartitioner

import kafkafmt as kf
import reference as ref
from _kafkafmt.batches.scan import BatchRun, scan
from _kafkafmt.wire.layout import RECORD_BATCH_OVERHEAD
from client.cluster import LIMIT, Cluster, Record, records_of
from client.sending import (
    ANSWER_SECONDS,
    GUARANTEES,
    START_MS,
    assert_sequences_continue,
    hex_digits,
    json_text,
)
from kafkafmt.net import BufferExhaustedError, RawProducer
from records.samples import GAPS, ROWS, SAMPLES, empty_batch

pytestmark = [pytest.mark.broker, pytest.mark.xdist_group("net")]


def built(codec: kf.Codec, first: int = 0, count: int = 10, **options) -> bytes:
    builder = kf.RecordBatchBuilder(codec=codec, base_offset=first, **options)
    for number in range(first, first + count):
        builder.append(START_MS + number, b"%d" % number, json_text(number), [("n", None)])
    return builder.build()


def run_of(*batches: bytes) -> BatchRun:
    return scan(b"".join(batches))[0]


def source(**options) -> list[bytes]:
    """Batches of every codec, of one record and of many."""
    batches, first = [], 0
    for codec in kf.Codec:
        for count in (1, 40):
            batches.append(built(codec, first, count, partition_leader_epoch=3, **options))
            first += count
    return batches


def records_in(batches: list[bytes]) -> list[Record]:
    return [record for batch in kf.MemoryRecords(b"".join(batches)).batches() for record in records_of(batch)]


def as_written(batch: kf.RecordBatch) -> tuple[object, ...]:
    """All of a batch but for offset, leader epoch and producer, which are a log's and a producer's to say."""
    fields = ("codec", "count", "base_timestamp", "max_timestamp", "timestamp_type", "is_control")
    return *(getattr(batch, field) for field in fields), bytes(batch)[RECORD_BATCH_OVERHEAD:]


def batches_in(batches: list[bytes]) -> list[kf.RecordBatch]:
    return list(kf.MemoryRecords(b"".join(batches)).batches())


@GUARANTEES
def test_batches_are_in_the_log_as_they_were_and_each_record_where_its_future_says(
    cluster: Cluster, topic: str, guarantee: dict[str, Any]
) -> None:
    sent = source(producer_id=99, producer_epoch=7, base_sequence=5, is_transactional=True)
    with RawProducer(bootstrap_servers=cluster.bootstrap, send_raw_bytes=True, **guarantee) as producer:
        singly = producer.send(topic, memoryview(sent[0]), partition=0)
        together = producer.send_run(topic, run_of(*sent[1:]), partition=0)
        assert singly.get(ANSWER_SECONDS).tolist() == [0]
        assert together.get(ANSWER_SECONDS).tolist() == list(range(1, len(records_in(sent))))
    stored = cluster.batches(topic)
    assert [as_written(batch) for batch in stored] == [as_written(batch) for batch in batches_in(sent)]
    assert cluster.consume(topic) == records_in(sent)
    if guarantee["enable_idempotence"]:
        assert_sequences_continue(stored)
    else:
        assert {(one.producer_id, one.producer_epoch, one.base_sequence) for one in stored} == {(-1, -1, -1)}
    assert not any(batch.is_transactional for batch in stored)


def test_a_buffer_may_be_used_again_once_it_was_sent(cluster: Cluster, topic: str) -> None:
    memory = bytearray(built(kf.Codec.LZ4))
    expected = records_in([bytes(memory)])
    with RawProducer(bootstrap_servers=cluster.bootstrap, linger_ms=500) as producer:
        producer.send(topic, memory, partition=0)
        memory[:] = bytes(len(memory))
    assert cluster.consume(topic) == expected


@GUARANTEES
@pytest.mark.parametrize("codec", [kf.Codec.NONE, kf.Codec.ZSTD])
def test_a_batch_larger_than_its_topic_takes_is_split_before_it_is_sent(
    cluster: Cluster, topic: str, guarantee: dict[str, Any], codec: kf.Codec
) -> None:
    """What stands before and behind it goes as it is."""
    large = kf.RecordBatchBuilder(
        codec=codec, base_offset=10, producer_id=99, producer_epoch=0, base_sequence=2
    )
    for number in range(10, 510):
        large.append(START_MS, None, hex_digits(number))
    sent = [built(kf.Codec.GZIP), large.build(), built(kf.Codec.GZIP, 510)]
    with RawProducer(bootstrap_servers=cluster.bootstrap, **guarantee) as producer:
        future = producer.send_run(topic, run_of(*sent), partition=0)
        assert future.get(ANSWER_SECONDS).tolist() == list(range(520))
        assert producer.metrics()["producer-metrics"]["batch-split-total"] >= 1
    stored = cluster.batches(topic)
    assert as_written(stored[0]) == as_written(batches_in(sent)[0])
    assert as_written(stored[-1]) == as_written(batches_in(sent)[-1])
    assert all(batch.size_in_bytes <= LIMIT and batch.codec == codec for batch in stored[1:-1])
    assert cluster.consume(topic) == records_in(sent)
    assert cluster.refusals(topic) == 0


def test_a_batch_that_its_broker_refuses_as_too_large_is_split_then(cluster: Cluster, topic: str) -> None:
    sent = [built(kf.Codec.NONE, 0, 300), built(kf.Codec.NONE, 300)]
    with RawProducer(bootstrap_servers=cluster.bootstrap, topic_limits=False) as producer:
        future = producer.send_run(topic, run_of(*sent), partition=0)
        assert future.get(ANSWER_SECONDS).tolist() == list(range(310))
    assert cluster.refusals(topic) >= 1
    assert cluster.consume(topic) == records_in(sent)
    assert_sequences_continue(cluster.batches(topic))


def test_a_batch_whose_answer_is_lost_is_there_once(cluster: Cluster, topic: str) -> None:
    sent = source()
    with RawProducer(bootstrap_servers=cluster.bootstrap, request_timeout_ms=2000) as producer:
        producer.send(topic, sent[0], partition=0).get(ANSWER_SECONDS)
        with cluster.losing_next_produce():
            future = producer.send_run(topic, run_of(*sent[1:]), partition=0)
        assert future.get(ANSWER_SECONDS).tolist() == list(range(1, len(records_in(sent))))
    assert cluster.consume(topic) == records_in(sent)


def test_a_transaction_has_the_batches_that_were_sent_in_it(cluster: Cluster, topic: str) -> None:
    sent = source(producer_id=99, producer_epoch=7, base_sequence=5)
    with RawProducer(bootstrap_servers=cluster.bootstrap, transactional_id=topic) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send_run(topic, run_of(*sent[:2]), partition=0)
        producer.flush(ANSWER_SECONDS)
        producer.abort_transaction()
        producer.begin_transaction()
        producer.send_run(topic, run_of(*sent), partition=0)
        producer.commit_transaction()
    stored = cluster.batches(topic)
    assert all(batch.is_transactional and batch.producer_id != 99 for batch in stored)
    aborted = len(records_in(sent[:2]))
    cluster.wait_for_end(topic, aborted + len(records_in(sent)) + 2)
    committed = [
        record._replace(offset=record.offset - aborted - 1)
        for record in cluster.consume(topic, isolation="read_committed")
    ]
    assert committed == records_in(sent)


def test_a_commit_without_an_answer_in_time_raises_and_the_next_producer_ends_the_transaction(
    cluster: Cluster, topic: str
) -> None:
    """KIP-98, "Guarantees": `initTransactions` completes or aborts the last transaction of the transactional id."""
    sent = source()
    with RawProducer(bootstrap_servers=cluster.bootstrap, transactional_id=topic) as producer:
        producer.init_transactions(ANSWER_SECONDS)
        producer.begin_transaction()
        producer.send_run(topic, run_of(*sent), partition=0).get(ANSWER_SECONDS)
        with cluster.frozen(), pytest.raises(kafka.errors.KafkaTimeoutError, match="ending a transaction"):
            producer.commit_transaction(0.1)
        producer.close(0)
    with RawProducer(bootstrap_servers=cluster.bootstrap, transactional_id=topic) as other:
        other.init_transactions(ANSWER_SECONDS)
    cluster.wait_for_end(topic, len(records_in(sent)) + 1)
    seen = cluster.consume(topic, isolation="read_committed")
    assert seen in ([], records_in(sent))


def test_a_batch_that_is_refused_in_a_transaction_is_told_from_those_that_were_not_sent(
    cluster: Cluster, topic: str
) -> None:
    compacted = cluster.create_topic(f"{topic}-c", 1, {"cleanup.policy": "compact"})
    builder = kf.RecordBatchBuilder()
    builder.append(START_MS, None, b"without a key")
    options = {"transactional_id": topic, "max_in_flight_requests_per_connection": 1}
    with RawProducer(bootstrap_servers=cluster.bootstrap, **options) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        good = built(kf.Codec.LZ4)
        futures = [
            producer.send_run(compacted, run_of(good, builder.build(), good), partition=0),
            producer.send_run(compacted, run_of(good), partition=0),
        ]
        while not all(future.is_done for future in futures):
            producer.flush(ANSWER_SECONDS)
        number, error = futures[0].sent_failure()
        assert (number, type(error)) == (10, kafka.errors.InvalidRecordError)
        assert isinstance(producer.transaction_error, kafka.errors.InvalidRecordError)
        assert futures[1].outcome(0).exceptions
        producer.abort_transaction(ANSWER_SECONDS)
        assert producer.transaction_error is None


def test_several_partitions_go_together_each_in_order(cluster: Cluster, topic: str) -> None:
    three = cluster.create_topic(f"{topic}-3"[-200:], partitions=3)
    sent = source()
    with RawProducer(bootstrap_servers=cluster.bootstrap, max_batches_per_request="auto") as producer:
        futures = [producer.send_run(three, run_of(*sent), partition=number) for number in range(3)]
        for future in futures:
            assert future.get(ANSWER_SECONDS).tolist() == list(range(len(records_in(sent))))
    for number in range(3):
        assert cluster.consume(three, number) == records_in(sent)


def test_a_partition_that_is_added_to_a_topic_is_waited_for(cluster: Cluster, topic: str) -> None:
    sent = built(kf.Codec.NONE)
    with RawProducer(bootstrap_servers=cluster.bootstrap) as producer:
        producer.send(topic, sent, partition=0).get(ANSWER_SECONDS)
        producer._max_block_ms = 500  # now that it knows the topic
        with pytest.raises(
            kafka.errors.KafkaTimeoutError, match=r"-1: not found within 0.5 s .* 1 partitions"
        ):
            producer.send(topic, sent, partition=1)
    with RawProducer(bootstrap_servers=cluster.bootstrap) as producer:
        producer.send(topic, sent, partition=0).get(ANSWER_SECONDS)
        cluster.add_partitions(topic, 2)
        assert producer.send(topic, sent, partition=1).get(ANSWER_SECONDS)[0] == 0


def test_what_a_broker_minds_of_one_record_is_told_for_the_batch(cluster: Cluster, topic: str) -> None:
    """It takes none of them."""
    cluster.alter_topic(topic, {"message.timestamp.after.max.ms": 1000})
    builder = kf.RecordBatchBuilder(codec=kf.Codec.GZIP)
    for timestamp in (START_MS, START_MS + 86_400_000, START_MS):
        builder.append(timestamp, None, b"value")
    with RawProducer(bootstrap_servers=cluster.bootstrap) as producer:
        future = producer.send(topic, builder.build(), partition=0)
        with pytest.raises(kafka.errors.InvalidTimestampError, match="out of range"):
            future.get(ANSWER_SECONDS)
        assert producer.send(topic, built(kf.Codec.GZIP), partition=0).get(ANSWER_SECONDS)[0] == 0


def test_a_broker_refuses_several_batches_in_one_request(cluster: Cluster, topic: str) -> None:
    """Which is why that is for targets that say otherwise."""
    with RawProducer(bootstrap_servers=cluster.bootstrap, max_batches_per_request=2) as producer:
        future = producer.send_run(topic, run_of(*source()), partition=0)
        with pytest.raises(kafka.errors.InvalidRecordError):
            future.get(ANSWER_SECONDS)


def test_without_room_send_run_tells_what_was_taken(cluster: Cluster, topic: str) -> None:
    batch = built(kf.Codec.NONE, count=50)
    with RawProducer(bootstrap_servers=cluster.bootstrap, buffer_memory=3 * len(batch)) as producer:
        producer.send(topic, batch, partition=0).get(ANSWER_SECONDS)
        producer._max_block_ms = 300  # now that it knows the topic
        with cluster.frozen(), pytest.raises(BufferExhaustedError) as caught:
            producer.send_run(topic, run_of(*[batch] * 5), partition=0)
        taken = caught.value.appended
        assert len(taken) == 150
        assert taken.get(ANSWER_SECONDS).tolist() == list(range(50, 200))


# What is refused


@pytest.fixture(scope="module")
def producer(cluster: Cluster) -> Iterator[RawProducer]:
    with RawProducer(bootstrap_servers=cluster.bootstrap) as opened:
        yield opened


@pytest.mark.parametrize(
    "record",
    [
        {"value": None},
        {"value": "text"},
        {"value": built(kf.Codec.NONE), "key": b"key"},
        {"value": built(kf.Codec.NONE), "headers": [("n", b"")]},
        {"value": built(kf.Codec.NONE), "timestamp_ms": 1},
    ],
    ids=["none", "text", "key", "headers", "timestamp"],
)
def test_an_ordinary_record_is_a_type_error_that_says_so(
    producer: RawProducer, topic: str, record: dict[str, Any]
) -> None:
    with pytest.raises(TypeError, match="a RawProducer sends batches"):
        producer.send(topic, partition=0, **record)


@pytest.mark.parametrize(
    "value",
    [
        b"value",
        built(kf.Codec.NONE) + b"more",
        built(kf.Codec.NONE)[:-1],
        built(kf.Codec.NONE) * 2,
    ],
    ids=["value", "more", "less", "two"],
)
def test_value_when_its_bytes_are_not_one_batch_then_is_a_value_error(
    producer: RawProducer, topic: str, value: bytes
) -> None:
    with pytest.raises(ValueError, match=r"a RawProducer sends batches .*, found .* bytes with"):
        producer.send(topic, value, partition=0)


def test_repr_when_it_is_a_raw_producer_then_says_so(producer: RawProducer) -> None:
    assert repr(producer) == str(producer)
    assert repr(producer).startswith("<RawProducer client_id=kafka-python-producer-")


def test_a_batch_without_a_partition_is_a_type_error(producer: RawProducer, topic: str) -> None:
    with pytest.raises(TypeError, match="partition: expected a number"):
        producer.send(topic, built(kf.Codec.NONE))


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (SAMPLES["v1"][: len(ref.messages(1, ROWS[:1]))], "magic: expected 2, found 1"),
        (SAMPLES["v2 control"], "control: expected records, found a marker"),
        (empty_batch(), "count: expected 1 or more, found 0"),
        (ref.batch_of(GAPS), "count: expected last offset delta"),
        (SAMPLES["v2 log append"], "timestamp type: expected CreateTime, found LogAppendTime"),
    ],
    ids=["magic", "control", "empty", "gaps", "log append"],
)
def test_a_batch_that_a_broker_would_refuse_is_refused_with_its_reason_and_none_is_sent(
    producer: RawProducer, topic: str, batch: bytes, message: str
) -> None:
    with pytest.raises(kf.InvalidRecordError, match=message):
        producer.send(topic, batch, partition=0)
    run, *_ = scan(built(kf.Codec.NONE) + batch)
    with pytest.raises(kf.InvalidRecordError, match=message):
        producer.send_run(topic, run, partition=0)
    producer.flush(ANSWER_SECONDS)
    assert (
        producer._record_accumulator.budget.available_bytes == producer._record_accumulator.budget.total_bytes
    )


def test_a_damaged_batch_is_refused_before_it_gets_a_new_crc(producer: RawProducer, topic: str) -> None:
    damaged = bytearray(built(kf.Codec.NONE))
    damaged[-1] ^= 1
    with pytest.raises(kf.CorruptRecordError, match="CRC mismatch"):
        producer.send(topic, damaged, partition=0)


def test_columns_are_a_type_error(producer: RawProducer, topic: str) -> None:
    with pytest.raises(TypeError, match="a RawProducer sends batches"):
        producer.send_columns(topic, [0], None, [b"value"], partition=0)


@pytest.mark.parametrize(
    "options",
    [
        {"send_raw_bytes": False},
        {"compression_type": "gzip"},
        {"key_serializer": str.encode},
        {"value_serializer": str.encode},
        {"partitioner": hash},
        {"estimator": "kip126"},
        {"max_batches_per_request": 0},
        {"max_batches_per_request": "many"},
    ],
    ids=lambda options: next(iter(options)),
)
def test_options_that_mean_nothing_for_batches_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(options))}: expected [^<]*$"):
        RawProducer(bootstrap_servers="127.0.0.1:1", **options)


@pytest.mark.parametrize(
    "options",
    [
        {"partitioner": None, "estimator": None},
        {"partitioner": DefaultPartitioner(), "estimator": "recent"},
        {"compression_type": None, "key_serializer": None, "value_serializer": None},
    ],
    ids=["none", "defaults", "defaults that are none"],
)
def test_options_when_they_mean_nothing_for_batches_and_have_no_value_of_their_own_then_are_taken(
    options: dict[str, Any],
) -> None:
    with pytest.raises(KafkaTimeoutError):  # as no broker answers
        RawProducer(bootstrap_servers="127.0.0.1:1", bootstrap_timeout_ms=1, **options)
