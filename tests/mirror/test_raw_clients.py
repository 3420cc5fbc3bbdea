"""A mirror of a few lines, of the raw consumer and the raw producer: what KIP-712 asks of clients."""

from __future__ import annotations

from contextlib import closing

import pytest
from kafka import TopicPartition

from kafkafmt import BatchForwarder
from kafkafmt.net import RawConsumer, RawProducer
from mirror.reading import Reader
from mirror.scenarios import SCENARIOS, Direction

pytestmark = [pytest.mark.broker, pytest.mark.xdist_group("mirror")]


def carry(direction: Direction, topic: str, partitions: int) -> None:
    """Into a topic of the same partitions, whose name begins with `raw.`."""
    wanted = [TopicPartition(topic, number) for number in range(partitions)]
    consumer = RawConsumer(
        bootstrap_servers=direction.source.bootstrap,
        fetch_raw_bytes=True,
        isolation_level="read_committed",
        auto_offset_reset="earliest",
    )
    producer = RawProducer(bootstrap_servers=direction.target.bootstrap, send_raw_bytes=True)
    with closing(consumer), closing(producer):
        forwarders = {one: BatchForwarder(clears_producer_state=False, verify=False) for one in wanted}
        consumer.assign(wanted)
        ends = consumer.end_offsets(wanted)
        while any(consumer.position(one) < ends[one] for one in wanted):
            for one, runs in consumer.poll_runs(timeout_ms=500).items():
                for run in runs:
                    for forwarded in forwarders[one].forward(run):
                        producer.send_run(
                            f"raw.{topic}", forwarded.run, partition=one.partition, verify=False
                        )
        producer.flush()


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_clients_when_they_are_joined_then_carry_every_record(direction: Direction, scenario: str) -> None:
    topic, partitions = direction.topic(scenario), SCENARIOS[scenario].partitions
    direction.target.create_topic(f"raw.{topic}", partitions)
    carry(direction, topic, partitions)
    with Reader(direction.source.bootstrap) as source, Reader(direction.target.bootstrap) as target:
        for partition in range(partitions):
            wanted = [read._replace(timestamp_type=1) for read in source.records(topic, partition)]
            assert target.records(f"raw.{topic}", partition) == wanted
