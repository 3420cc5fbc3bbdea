"""Real consumers in groups, all polled in the same way.

They commit what they are handed, at once, and nothing by themselves. Where they are told that they are no members any
more, which a commit may be the first to hear, they forget it: it comes again, to them or to another.
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
SESSION_SECONDS, HEARTBEAT_SECONDS = 6, 0.5
_NO_MEMBER = (confluent_kafka.KafkaError.UNKNOWN_MEMBER_ID, confluent_kafka.KafkaError.ILLEGAL_GENERATION)


class Consumer(Protocol):
    """A member of a group."""

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
        )

    def poll(self) -> list[tuple[int, int]]:
        polled = self._consumer.poll(timeout_ms=int(POLL_SECONDS * 1000))
        records = [(record.partition, record.offset) for batch in polled.values() for record in batch]
        if records:
            try:
                self._consumer.commit()
            except kafka.errors.CommitFailedError:
                return []
        return records

    def assigned(self) -> set[int]:
        return {partition.partition for partition in self._consumer.assignment()}

    def close(self) -> None:
        self._consumer.close()


class Confluent:
    def __init__(self, bootstrap: str, topic: str, group: str, **settings: Any) -> None:
        self._consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "session.timeout.ms": SESSION_SECONDS * 1000,
                "heartbeat.interval.ms": int(HEARTBEAT_SECONDS * 1000),
                "reconnect.backoff.ms": 50,
                **settings,
            }
        )
        self._consumer.subscribe([topic])

    def poll(self) -> list[tuple[int, int]]:
        messages = self._consumer.consume(MOST_RECORDS, POLL_SECONDS)
        records = [(message.partition(), message.offset()) for message in messages if message.error() is None]
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
            if records:
                try:
                    await self._consumer.commit()
                except aiokafka.errors.CommitFailedError:
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
