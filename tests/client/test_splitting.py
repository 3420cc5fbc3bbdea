"""Batches that come out larger than a broker takes are split, and nobody notices (KIP-126)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import kafkafmt as kf
from client.cluster import LIMIT, Cluster, named_after
from client.sending import (
    ANSWER_SECONDS,
    GUARANTEES,
    IDEMPOTENT,
    KINDS,
    NOT_IDEMPOTENT,
    Sent,
    assert_sequences_continue,
    hex_digits,
    json_text,
    sending,
    zeros,
)
from kafkafmt.net import PossiblyDeliveredError

pytestmark = [pytest.mark.broker, pytest.mark.xdist_group("net")]

COMPRESSING = ["gzip", "snappy", "lz4", "zstd"]


def each_codec(codecs: Sequence[str | None]) -> pytest.MarkDecorator:
    """Every codec with every guarantee; with `make test`, all of an idempotent producer and one of the others."""
    cases = [
        pytest.param(
            codec,
            guarantee,
            id=f"{codec}-{'idempotent' if guarantee is IDEMPOTENT else 'not-idempotent'}",
            marks=[] if guarantee is IDEMPOTENT or codec == "lz4" else pytest.mark.full,
        )
        for codec in codecs
        for guarantee in (IDEMPOTENT, NOT_IDEMPOTENT)
    ]
    return pytest.mark.parametrize(("codec", "guarantee"), cases)


PARTITIONS = 2
RUN = 150  # records of one kind before the next
FLUSH_ALONE_MS = 60_000  # a linger_ms under which flush() alone closes what is not full


@each_codec([None, *COMPRESSING])
def test_produce_when_topics_differ_tenfold_then_all_arrives_once_in_order(
    cluster: Cluster, request: pytest.FixtureRequest, codec: str | None, guarantee: Mapping[str, Any]
) -> None:
    """As through a mirror: one producer, topics one after the other, then interleaved."""
    topics = {name: cluster.create_topic(named_after(request.node.name, name), PARTITIONS) for name in KINDS}
    with sending(cluster, compression_type=codec, **guarantee) as sent:
        for name, topic in topics.items():
            for number in range(RUN):
                sent.send(topic, KINDS[name](number), number % PARTITIONS)
        for number in range(RUN):
            for name, topic in topics.items():
                sent.send(topic, KINDS[name](number), number % PARTITIONS)
    sent.assert_arrived(cluster, LIMIT)
    assert [cluster.refusals(topic) for topic in topics.values()] == [0, 0, 0]


@pytest.mark.parametrize("codec", COMPRESSING)
def test_kinds_of_records_when_compressed_then_they_differ_tenfold(codec: str) -> None:
    sizes = {}
    for name, kind in KINDS.items():
        builder = kf.RecordBatchBuilder(codec=kf.Codec[codec.upper()])
        for number in range(2 * RUN):
            builder.append(number, None, kind(number))
        sizes[name] = len(builder.build())
    assert sizes["hex"] > 10 * sizes["zeros"]


def send_easy_then_hard(sent: Sent, topic: str) -> None:
    """Records that shrink to almost nothing, until that is expected; then as many that do not, in one batch."""
    for _ in range(2):
        for number in range(500):
            sent.send(topic, zeros(number))
        sent.flush()
    for number in range(800):
        sent.send(topic, hex_digits(number))
    sent.flush()


@each_codec(COMPRESSING)
def test_produce_when_the_limit_is_known_then_a_batch_is_split_before_it_is_sent(
    cluster: Cluster, topic: str, codec: str, guarantee: Mapping[str, Any]
) -> None:
    with sending(cluster, compression_type=codec, linger_ms=FLUSH_ALONE_MS, **guarantee) as sent:
        send_easy_then_hard(sent, topic)
        assert sent.metric("batch-split-total") > 0
        assert sent.metric("batch-split-rate") > 0
    sent.assert_arrived(cluster, LIMIT)
    assert cluster.refusals(topic) == 0
    if guarantee is IDEMPOTENT:
        assert_sequences_continue(cluster.batches(topic))


@each_codec(COMPRESSING)
def test_produce_when_the_limit_is_hidden_then_what_the_broker_refuses_is_split(
    cluster: Cluster, topic: str, codec: str, guarantee: Mapping[str, Any]
) -> None:
    cluster.hide_config(topic)
    with sending(cluster, compression_type=codec, linger_ms=FLUSH_ALONE_MS, **guarantee) as sent:
        send_easy_then_hard(sent, topic)
        assert sent.metric("batch-split-total") == cluster.refusals(topic) > 0
    sent.assert_arrived(cluster, LIMIT)
    if guarantee is IDEMPOTENT:
        assert_sequences_continue(cluster.batches(topic))


@GUARANTEES
def test_produce_when_the_limit_is_lowered_meanwhile_then_the_producer_learns_of_it(
    cluster: Cluster, topic: str, guarantee: Mapping[str, Any]
) -> None:
    with sending(cluster, compression_type="zstd", **guarantee) as sent:
        send_until(cluster, sent, topic, lambda refused: not refused)
        cluster.alter_topic(topic, {"max.message.bytes": LIMIT // 4})
        send_until(cluster, sent, topic, lambda refused: refused)
        send_until(cluster, sent, topic, lambda refused: not refused)
    sent.assert_arrived(cluster, LIMIT)
    assert cluster.batches(topic)[-1].size_in_bytes <= LIMIT // 4
    if guarantee is IDEMPOTENT:
        assert_sequences_continue(cluster.batches(topic))


def send_until(cluster: Cluster, sent: Sent, topic: str, holds: Callable[[bool], bool]) -> None:
    """Send more than one batch can hold, again and again, until something of it was refused, or nothing was."""
    for _ in range(50):
        before = cluster.refusals(topic)
        for number in range(200):
            sent.send(topic, hex_digits(number))
        sent.flush()
        if holds(cluster.refusals(topic) > before):
            return
    raise AssertionError("the answers of the broker stayed as they were")


@GUARANTEES
def test_produce_when_the_broker_decompresses_then_batches_fit_as_it_stores_them(
    cluster: Cluster, request: pytest.FixtureRequest, guarantee: Mapping[str, Any]
) -> None:
    """It measures what it stores, which is larger than what it was sent."""
    topic = cluster.create_topic(named_after(request.node.name), config={"compression.type": "uncompressed"})
    with sending(cluster, compression_type="zstd", linger_ms=FLUSH_ALONE_MS, **guarantee) as sent:
        for _ in range(2):
            for number in range(500):
                sent.send(topic, json_text(number))
            sent.flush()
    sent.assert_arrived(cluster, LIMIT)
    assert cluster.refusals(topic) > 0
    assert {batch.codec for batch in cluster.batches(topic)} == {kf.Codec.NONE}
    if guarantee is IDEMPOTENT:
        assert_sequences_continue(cluster.batches(topic))


@GUARANTEES
@pytest.mark.parametrize("is_hidden", [False, True], ids=["known", "hidden"])
def test_produce_when_a_record_alone_is_too_large_then_it_alone_fails(
    cluster: Cluster, topic: str, is_hidden: bool, guarantee: Mapping[str, Any]
) -> None:
    if is_hidden:
        cluster.hide_config(topic)
    too_large = b"".join(hex_digits(number) for number in range(3 * LIMIT // 200))
    with sending(cluster, **guarantee) as sent:
        for number in range(100):
            sent.send(topic, json_text(number))
        failing = [sent.send_in_vain(topic, too_large) for _ in range(2)]
        for number in range(100):
            sent.send(topic, json_text(number))
        for future in failing:
            with pytest.raises(kf.RecordTooLargeError, match=rf"{len(too_large) // 1000}\d\d\d bytes"):
                future.get(ANSWER_SECONDS)
        sent.flush()
    sent.assert_arrived(cluster, LIMIT)
    if guarantee is IDEMPOTENT:
        assert_sequences_continue(cluster.batches(topic))


@GUARANTEES
def test_produce_when_a_record_alone_is_too_large_decompressed_then_it_alone_fails(
    cluster: Cluster, request: pytest.FixtureRequest, guarantee: Mapping[str, Any]
) -> None:
    """Compressed it would fit; the broker stores it as it was."""
    topic = cluster.create_topic(named_after(request.node.name), config={"compression.type": "uncompressed"})
    with sending(cluster, compression_type="zstd", **guarantee) as sent:
        for number in range(50):
            sent.send(topic, json_text(number))
        failing = sent.send_in_vain(topic, bytes(2 * LIMIT))
        for number in range(50):
            sent.send(topic, json_text(number))
        with pytest.raises(kf.RecordTooLargeError, match=str(LIMIT)):
            failing.get(ANSWER_SECONDS)
        sent.flush()
    sent.assert_arrived(cluster, LIMIT)
    if guarantee is IDEMPOTENT:
        assert_sequences_continue(cluster.batches(topic))


def test_produce_when_threads_share_a_producer_then_each_finds_its_records_in_order(
    cluster: Cluster, request: pytest.FixtureRequest
) -> None:
    topics = {name: cluster.create_topic(named_after(request.node.name, name)) for name in KINDS}
    with sending(cluster, compression_type="snappy", **IDEMPOTENT) as sent:

        def send_all(topic: str) -> None:
            for number in range(3 * RUN):
                for kind in KINDS.values():
                    sent.send(topic, kind(number))

        with ThreadPoolExecutor(len(topics)) as threads:
            list(threads.map(send_all, topics.values()))
    sent.assert_arrived(cluster, LIMIT)


@pytest.mark.parametrize("is_hidden", [False, True], ids=["known", "hidden"])
def test_produce_when_sequence_numbers_wrap_within_a_split_then_they_go_on_at_zero(
    cluster: Cluster, topic: str, is_hidden: bool
) -> None:
    if is_hidden:
        cluster.hide_config(topic)
    first = 2**31 - 400  # where a split's parts are around its wrap
    with sending(cluster, compression_type="lz4", linger_ms=FLUSH_ALONE_MS, **IDEMPOTENT) as sent:
        sent.send(cluster.create_topic(f"{topic}other"), b"so that there is a producer id")
        sent.flush()
        sent.producer._transactions.numbers.set_next(kf.TopicPartition(topic, 0), first)
        for number in range(800):
            sent.send(topic, hex_digits(number))
        sent.flush()
        assert sent.metric("batch-split-total") > 0
    sent.assert_arrived(cluster, LIMIT)
    assert_sequences_continue(cluster.batches(topic), first)


@pytest.mark.parametrize("is_known", [True, False], ids=["known", "unknown"])
def test_produce_when_the_limit_is_lowered_behind_a_lost_answer_then_nothing_is_doubled(
    cluster: Cluster, topic: str, is_known: bool
) -> None:
    """A broker that has the batch refuses it by its size all the same, and tells by the first part that it has it."""
    options = {"linger_ms": 500, "retry_backoff_ms": 2000, "topic_limits": is_known}
    with sending(cluster, **options, **IDEMPOTENT) as sent:
        sent.send(topic, zeros(0)).get(ANSWER_SECONDS)
        with cluster.losing_next_produce():
            for number in range(80):
                sent.send(topic, hex_digits(number))
        for number in range(80, 100):
            sent.send(topic, hex_digits(number))
        cluster.alter_topic(topic, {"max.message.bytes": LIMIT // 4})
        sent.flush()
        sent.send(topic, zeros(0)).get(ANSWER_SECONDS)
    records = sent.records[topic, 0]
    assert cluster.consume(topic) == records
    futures = sent.futures[topic, 0]
    assert all(isinstance(future.exception, PossiblyDeliveredError) for future in futures[1:81])
    assert [future.get().offset for future in futures[81:]] == [record.offset for record in records[81:]]


def test_produce_when_nothing_is_acknowledged_then_batches_fit_all_the_same(
    cluster: Cluster, topic: str
) -> None:
    """A refusal could not be told: with acks=0 the broker ends the connection."""
    with sending(cluster, compression_type="lz4", **{**NOT_IDEMPOTENT, "acks": 0}) as sent:
        send_easy_then_hard(sent, topic)
        records = sent.records[topic, 0]
        cluster.wait_for_end(topic, len(records))
    assert cluster.consume(topic) == records
