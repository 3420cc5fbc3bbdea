"""What the producer knows of `max.message.bytes`, and when it asks."""

from __future__ import annotations

import time

import pytest

from client.cluster import LIMIT, Cluster
from client.sending import ANSWER_SECONDS
from kafkafmt.client import limits
from kafkafmt.net import Producer

pytestmark = [pytest.mark.broker, pytest.mark.xdist_group("net")]


def send_until_limit(producer: Producer, topic: str, limit: int) -> None:
    """Send record after record, until the producer knows that limit."""
    deadline = time.monotonic() + ANSWER_SECONDS
    while producer._limits.max_message_bytes(topic) != limit:
        assert time.monotonic() < deadline, f"the limit stays {producer._limits.max_message_bytes(topic)}"
        producer.send(topic, b"value").get(ANSWER_SECONDS)


def test_limit_when_a_topic_is_first_sent_to_then_it_is_known_before_its_first_batch_is_sent(
    cluster: Cluster, topic: str
) -> None:
    with Producer(bootstrap_servers=cluster.bootstrap) as producer:
        producer.send(topic, b"value").get(ANSWER_SECONDS)
        assert producer._limits.max_message_bytes(topic) == LIMIT
        assert producer._limits.held_until_ms(topic) == 0


def test_limit_when_it_was_raised_then_it_is_learned_after_metadata_max_age(
    cluster: Cluster, topic: str
) -> None:
    with Producer(bootstrap_servers=cluster.bootstrap, metadata_max_age_ms=100) as producer:
        send_until_limit(producer, topic, LIMIT)
        cluster.alter_topic(topic, {"max.message.bytes": 2 * LIMIT})
        send_until_limit(producer, topic, 2 * LIMIT)


def test_limit_when_its_answer_is_refused_then_records_do_not_wait(
    cluster: Cluster, topic: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # So that a record which waited would be too late, however slow the machine is.
    monkeypatch.setattr(limits, "MAX_PAUSE_MS", 3 * ANSWER_SECONDS * 1000)
    cluster.hide_config(topic)
    with Producer(bootstrap_servers=cluster.bootstrap, metadata_max_age_ms=50) as producer:
        for _ in range(6):
            producer.send(topic, b"value").get(ANSWER_SECONDS)
        assert producer._limits.max_message_bytes(topic) is None
    told = [record for record in caplog.records if "max.message.bytes stays unknown" in record.message]
    assert len(told) == 1
