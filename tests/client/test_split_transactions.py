"""Batches that are split within transactions (KIP-98): all parts are committed, or aborted, together."""

from __future__ import annotations

import pytest

from client.cluster import LIMIT, Cluster
from client.sending import Sent, assert_sequences_continue, hex_digits, sending, zeros
from kafkafmt.log import LogDirectory

pytestmark = [pytest.mark.broker, pytest.mark.xdist_group("net")]


def send_split(sent: Sent, topic: str) -> None:
    """Enough that shrinks to be wrong about what follows and does not."""
    for number in range(600):
        sent.send(topic, zeros(number))
    sent.producer.flush()
    for number in range(600):
        sent.send(topic, hex_digits(number))


@pytest.mark.parametrize("is_hidden", [False, True], ids=["known", "hidden"])
def test_transaction_when_a_batch_is_split_then_its_parts_share_the_outcome(
    cluster: Cluster, topic: str, is_hidden: bool
) -> None:
    if is_hidden:
        cluster.hide_config(topic)
    options = {"compression_type": "lz4", "linger_ms": 60_000, "transactional_id": topic}
    with sending(cluster, **options) as sent:
        sent.producer.init_transactions()
        sent.producer.begin_transaction()
        send_split(sent, topic)
        sent.producer.commit_transaction()
        splits = sent.metric("batch-split-total")
        sent.producer.begin_transaction()
        send_split(sent, topic)
        sent.producer.flush()
        sent.producer.abort_transaction()
        assert 0 < splits < sent.metric("batch-split-total")
        sent.producer.begin_transaction()
        sent.send(topic, zeros(0))
        sent.producer.commit_transaction()
    assert (cluster.refusals(topic) > 0) == is_hidden
    values = [record.value for record in sent.records[topic, 0]]
    offsets = [future.get().offset for future in sent.futures[topic, 0]]
    uncommitted = cluster.consume(topic)
    assert [record.value for record in uncommitted] == values
    assert [record.offset for record in uncommitted] == offsets
    committed = cluster.consume(topic, isolation="read_committed")
    assert [record.value for record in committed] == values[:1200] + values[-1:]
    batches = cluster.batches(topic)
    assert all(batch.is_transactional and batch.size_in_bytes <= LIMIT for batch in batches)
    assert_sequences_continue(batches)
    (aborted,) = LogDirectory(cluster.broker.log_dir).partition((topic, 0)).scan_aborted_transactions()
    assert aborted.first_offset == offsets[1200]


@pytest.mark.full
def test_transaction_when_the_broker_is_killed_within_it_then_it_is_committed_whole(
    cluster: Cluster, topic: str
) -> None:
    with sending(cluster, compression_type="lz4", transactional_id=topic) as sent:
        sent.producer.init_transactions()
        sent.producer.begin_transaction()
        send_split(sent, topic)
        with cluster.losing_next_produce():
            for number in range(600):
                sent.send(topic, hex_digits(number))
        cluster.kill()
        for number in range(600):
            sent.send(topic, hex_digits(number))
        cluster.start()
        sent.producer.commit_transaction()
    values = [record.value for record in sent.records[topic, 0]]
    assert [record.value for record in cluster.consume(topic, isolation="read_committed")] == values
    assert_sequences_continue(cluster.batches(topic))
