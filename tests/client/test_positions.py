"""Positions that are validated or reset, from a real broker."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any

import kafka.errors
import pytest
from kafka.structs import OffsetAndMetadata

from client.cluster import Cluster
from client.raw_reading import READ_SECONDS
from client.test_consumer import EARLIEST, consuming, only, polled
from client.test_raw_consumer import send_singly
from kafkafmt.net import Producer

pytestmark = [pytest.mark.broker, pytest.mark.xdist_group("net")]


def poll_until(consumer: Any, holds: Callable[[], bool]) -> None:
    """Poll without waiting, so that the consumer does nothing more once that is so."""
    deadline = time.monotonic() + READ_SECONDS
    while not holds():
        assert time.monotonic() < deadline
        assert consumer.poll(0) == {}


def test_records_when_their_position_was_reset_between_polls_to_the_offset_that_was_refused_then_come(
    cluster: Cluster, topic: str
) -> None:
    here = only(topic)
    with consuming(cluster.bootstrap, auto_offset_reset="latest") as consumer:
        consumer.assign([here])
        consumer.seek(here, 3)
        poll_until(consumer, lambda: consumer._subscription.is_offset_reset_needed(here))
        send_singly(cluster, topic, 3)
        assert consumer.position(here, READ_SECONDS * 1000) == 3
        send_singly(cluster, topic, 1)
        assert [record.offset for record in polled(consumer, 1)] == [3]


def test_records_when_their_position_was_validated_between_polls_then_come(
    cluster: Cluster, topic: str
) -> None:
    here = only(topic)
    send_singly(cluster, topic, 1)
    with consuming(cluster.bootstrap, here) as consumer:
        polled(consumer, 1)
        metadata = consumer._cluster._partitions[topic][0]
        epoch, metadata.leader_epoch = metadata.leader_epoch, 99
        consumer._engine.update()
        consumer._engine.want()
        unknown = kafka.errors.UnknownLeaderEpochError.errno
        cluster.tap.wait_until(
            lambda: any((one.topic, one.error_code) == (topic, unknown) for one in list(cluster.tap.fetches))
        )
        metadata.leader_epoch = epoch
        poll_until(consumer, lambda: consumer._subscription.is_offset_validation_needed(here))
        assert consumer.position(here, READ_SECONDS * 1000) == 1
        send_singly(cluster, topic, 1)
        assert [record.offset for record in polled(consumer, 1)] == [1]


def test_poll_when_arrow_could_not_hold_a_record_after_others_then_returns_it(
    cluster: Cluster, topic: str
) -> None:
    name, beyond_ms = f"{topic}-beyond", 10**16
    cluster.create_topic(name, 2, {"message.timestamp.after.max.ms": 2**63 - 1})
    with Producer(bootstrap_servers=cluster.bootstrap) as producer:
        producer.send(name, b"first", partition=0)
        producer.send(name, b"beyond", partition=1, timestamp_ms=beyond_ms)
    with consuming(cluster.bootstrap, only(name, 0), only(name, 1)) as consumer:
        admit_both(consumer)
        assert consumer.poll_arrow()["value"].to_pylist() == [b"first"]
        (record,) = polled(consumer, 1)
    assert (record.value, record.timestamp) == (b"beyond", beyond_ms)


def admit_both(consumer: Any) -> None:
    """Wait until the data of two partitions has arrived. That of partition 0 is returned first."""
    deadline = time.monotonic() + READ_SECONDS
    fetches = consumer._fetches
    while len(fetches._waiting) < 2:
        assert time.monotonic() < deadline
        consumer._control_once(deadline)
        fetches._admit()
    fetches._waiting = deque(sorted(fetches._waiting, key=lambda item: item.fetched.topic_partition))


@pytest.mark.slow
def test_committed_offset_when_its_leader_has_lost_records_before_it_then_the_consumer_continues_where_the_log_differs(
    cluster: Cluster, topic: str
) -> None:
    here = only(topic)
    send_singly(cluster, topic, 2)
    cluster.kill()
    cluster.start()  # the next leader epochs
    send_singly(cluster, topic, 3)
    with consuming(cluster.bootstrap, here, group_id=topic, **EARLIEST) as consumer:
        epochs = [record.leader_epoch for record in polled(consumer, 5)]
        assert epochs[0] == epochs[1] < epochs[2]
        consumer.commit({here: OffsetAndMetadata(4, "", epochs[0])})
    with consuming(cluster.bootstrap, group_id=topic, **EARLIEST) as consumer:
        consumer.assign([here])
        assert polled(consumer, 1)[0].offset == 2
