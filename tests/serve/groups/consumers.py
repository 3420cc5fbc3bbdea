"""Real consumers in groups, all polled in the same way.

They commit what they are handed, at once, and nothing by themselves. What they were handed is `delivered`. Where a
commit fails, as nobody answers or they are no members any more, that is not among what `poll` returns.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

import aiokafka
import aiokafka.errors
import confluent_kafka
import kafka
import kafka.errors

MOST_RECORDS = 10
POLL_SECONDS = 0.1
# kafka-python 3.0.12 loses its assignment where it leads and a poll ends between its JoinGroup and its SyncGroup: one
# that is longer than its wait for metadata does not end there.
KAFKA_PYTHON_POLL_SECONDS = 0.5
SESSION_SECONDS, HEARTBEAT_SECONDS = 30, 0.5  # long sessions: no machine is so slow that one ends
_NO_MEMBER = (confluent_kafka.KafkaError.UNKNOWN_MEMBER_ID, confluent_kafka.KafkaError.ILLEGAL_GENERATION)


class Consumer(Protocol):
    """A member of a group. delivered: partition and offset of each record, in the order of delivery."""

    delivered: list[tuple[int, int]]

    def poll(self) -> list[tuple[int, int]]:
        """Some records that are committed, by partition and offset."""

    def assigned(self) -> set[int]:
        """The partitions that it has."""

    def close(self) -> None:
        """Leave the group."""


class KafkaPython:
    """`version` is that of a broker whose protocol it is to speak; None: the newest that both know."""

    def __init__(
        self, bootstrap: str, topic: str, group: str, version: tuple[int, ...] | None = None
    ) -> None:
        self.delivered: list[tuple[int, int]] = []
        self._consumer = kafka.KafkaConsumer(
            topic,
            bootstrap_servers=bootstrap,
            group_id=group,
            api_version=version,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=SESSION_SECONDS * 1000,
            heartbeat_interval_ms=int(HEARTBEAT_SECONDS * 1000),
            max_poll_records=MOST_RECORDS,
            retry_backoff_ms=50,
            reconnect_backoff_ms=50,
            reconnect_backoff_max_ms=200,
        )

    def poll(self) -> list[tuple[int, int]]:
        try:
            polled = self._consumer.poll(timeout_ms=int(KAFKA_PYTHON_POLL_SECONDS * 1000))
        except kafka.errors.KafkaConnectionError:  # the server is away
            return []
        records = [(record.partition, record.offset) for batch in polled.values() for record in batch]
        self.delivered += records
        if records:
            try:
                self._consumer.commit()
            except kafka.errors.KafkaError:
                return []
        return records

    def assigned(self) -> set[int]:
        return {partition.partition for partition in self._consumer.assignment()}

    def close(self) -> None:
        self._consumer.close()


class Confluent:
    def __init__(self, bootstrap: str, topic: str, group: str, **settings: Any) -> None:
        self.delivered: list[tuple[int, int]] = []
        self._consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "session.timeout.ms": SESSION_SECONDS * 1000,
                "heartbeat.interval.ms": int(HEARTBEAT_SECONDS * 1000),
                "reconnect.backoff.ms": 50,
                "reconnect.backoff.max.ms": 200,
                **settings,
            }
        )
        self._consumer.subscribe([topic])

    def poll(self) -> list[tuple[int, int]]:
        messages = self._consumer.consume(MOST_RECORDS, POLL_SECONDS)
        records = [(message.partition(), message.offset()) for message in messages if message.error() is None]
        self.delivered += records
        if records:
            try:
                self._consumer.commit(asynchronous=False)
            except confluent_kafka.KafkaException as error:
                if error.args[0].code() not in _NO_MEMBER:
                    raise
                return []
        return records

    def assigned(self) -> set[int]:
        return {partition.partition for partition in self._consumer.assignment()}

    def close(self) -> None:
        self._consumer.close()


class Aiokafka:
    """All consumers of this kind share an event loop, which runs while one of them is polled."""

    _loop = asyncio.new_event_loop()

    def __init__(self, bootstrap: str, topic: str, group: str) -> None:
        self.delivered: list[tuple[int, int]] = []

        async def start() -> aiokafka.AIOKafkaConsumer:
            consumer = aiokafka.AIOKafkaConsumer(
                topic,
                bootstrap_servers=bootstrap,
                group_id=group,
                auto_offset_reset="earliest",
                enable_auto_commit=False,
                session_timeout_ms=SESSION_SECONDS * 1000,
                heartbeat_interval_ms=int(HEARTBEAT_SECONDS * 1000),
                retry_backoff_ms=50,
            )
            await consumer.start()
            return consumer

        self._consumer = self._loop.run_until_complete(start())

    def poll(self) -> list[tuple[int, int]]:
        async def once() -> list[tuple[int, int]]:
            polled = await self._consumer.getmany(
                timeout_ms=int(POLL_SECONDS * 1000), max_records=MOST_RECORDS
            )
            records = [(record.partition, record.offset) for batch in polled.values() for record in batch]
            self.delivered += records
            if records:
                try:
                    await self._consumer.commit()
                except aiokafka.errors.KafkaError:
                    return []
            return records

        return self._loop.run_until_complete(once())

    def assigned(self) -> set[int]:
        return {partition.partition for partition in self._consumer.assignment()}

    def close(self) -> None:
        self._loop.run_until_complete(self._consumer.stop())


def kafka_python_of_0_9(bootstrap: str, topic: str, group: str) -> Consumer:
    """Speaks the first version of the group protocol."""
    return KafkaPython(bootstrap, topic, group, (0, 9))


def confluent_of_0_9(bootstrap: str, topic: str, group: str) -> Consumer:
    settings = {"api.version.request": "false", "broker.version.fallback": "0.9.0.1"}
    return Confluent(bootstrap, topic, group, **settings)


def confluent_static(bootstrap: str, topic: str, group: str) -> Consumer:
    """A static member, with assignments that change step by step."""
    settings = {"group.instance.id": "the one", "partition.assignment.strategy": "cooperative-sticky"}
    return Confluent(bootstrap, topic, group, **settings)


CONSUMERS: list[Callable[[str, str, str], Consumer]] = [
    KafkaPython,
    kafka_python_of_0_9,
    Aiokafka,
    Confluent,
    confluent_of_0_9,
]
