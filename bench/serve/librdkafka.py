"""A consumer that people have: librdkafka by confluent-kafka, held to a version of Fetch."""

from __future__ import annotations

import time

from confluent_kafka import OFFSET_BEGINNING, Consumer, Message, TopicPartition
from tests.serve.raw_consumer import Consumed, Consumption, ConsumptionError

from bench import processes

# Fetch v1 is what it takes a broker of this version for; v11 it agrees on with brokers from 2.3 on.
_SETTINGS: dict[int, dict[str, str]] = {
    1: {"api.version.request": "false", "broker.version.fallback": "0.9.0.1"},
    11: {},
}
_AT_ONCE = 10_000
_WAIT_SECONDS = 30.0


def consume(wanted: Consumption) -> Consumed:
    """Consume all of it, timed from the first record on. Raises ConsumptionError where one is missing."""
    consumer = Consumer(
        {
            "bootstrap.servers": f"{wanted.host}:{wanted.port}",
            "group.id": "bench",
            "enable.auto.commit": "false",
            "max.partition.fetch.bytes": wanted.partition_max_bytes,
            "fetch.max.bytes": wanted.max_bytes,
            # As if a program took records as fast as they come: a full queue has it wait for a second.
            "queued.min.messages": 10_000_000,
            "queued.max.messages.kbytes": 2_097_151,
            "log_level": 3,  # nothing about settings that are old because the consumer is
            **_SETTINGS[wanted.version],
        }
    )
    left = sum(wanted.ends.values())
    offsets = dict.fromkeys(wanted.ends, 0)
    try:
        consumer.assign([TopicPartition(wanted.topic, part, OFFSET_BEGINNING) for part in wanted.ends])
        left -= _take(consumer.consume(1, _WAIT_SECONDS), offsets)
        started, before = time.perf_counter(), processes.threads()
        while left:
            left -= _take(consumer.consume(min(_AT_ONCE, left), _WAIT_SECONDS), offsets)
        seconds, after = time.perf_counter() - started, processes.threads()
    finally:
        consumer.close()
    if offsets != dict(wanted.ends):
        raise ConsumptionError(f"{wanted.topic}: consumed to {offsets}, expected {wanted.ends}")
    busiest = max(
        after[one].processor_seconds - before[one].processor_seconds for one in before if one in after
    )
    return Consumed(sum(offsets.values()), 0, 0, seconds, busiest)


def _take(messages: list[Message], offsets: dict[int, int]) -> int:
    """Every record is the one behind the last of its partition; returns how many they are."""
    if not messages:
        raise ConsumptionError(f"no record within {_WAIT_SECONDS:.0f} seconds, at {offsets}")
    for message in messages:
        if message.error() is not None:
            raise ConsumptionError(str(message.error()))
        partition, offset = message.partition(), message.offset()
        if offset != offsets[partition]:
            raise ConsumptionError(f"partition {partition}: offset {offset}, expected {offsets[partition]}")
        offsets[partition] = offset + 1
    return len(messages)
