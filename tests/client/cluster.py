"""A broker behind a tap: it may die and come back at the address that its clients know, and what it answers is noted.

It takes batches of `LIMIT` bytes at most, and lets anyone do anything with what has no access rules.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from confluent_kafka import Consumer, Message, TopicPartition
from kafka.errors import MessageSizeTooLargeError
from kafka.protocol.admin import (
    ACLOperation,
    ACLPermissionType,
    ACLResourceType,
    AlterClientQuotasRequest,
    CreateAclsRequest,
    CreatePartitionsRequest,
    DeleteTopicsRequest,
    IncrementalAlterConfigsRequest,
)
from kafka.protocol.metadata import MetadataRequest

import kafkafmt as kf
from broker.broker import HOST, JVM_OPTIONS, Broker, BrokerRefusalError, Kafka
from clients.tap import METADATA_WITH_TOPIC_IDS, Tap
from freezing import frozen
from kafkafmt.log import LogDirectory

if TYPE_CHECKING:
    from typing_extensions import Self

LIMIT = 20_000
READ_SECONDS = 60
MAX_TOPIC_NAME = 249
TOPIC_RESOURCE, SET = 2, 0  # of IncrementalAlterConfigs


class Record(NamedTuple):
    """One record as a reader gives it."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


def records_of(batch: kf.RecordBatch) -> list[Record]:
    return [Record(r.offset, r.timestamp, r.key, r.value, r.headers) for r in batch]


def named_after(test: str, suffix: str = "") -> str:
    """The name of a topic, from that of a test with its parameters."""
    return (re.sub(r"[^a-z0-9]+", "-", test.lower()) + suffix)[-MAX_TOPIC_NAME:]


class Cluster:
    """A running broker of that version; `config` overrides what is set here. A context manager that stops it."""

    def __init__(
        self,
        folder: Path,
        kafka: Kafka,
        config: Mapping[str, Any] | None = None,
        jvm_options: Sequence[str] = JVM_OPTIONS,
    ) -> None:
        self._folder, self._kafka = folder, kafka
        self._config, self._jvm_options = config or {}, jvm_options

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self.tap = stack.enter_context(Tap((HOST, 0)))
            config = {
                "advertised.listeners": f"PLAINTEXT://{self.tap.bootstrap}",
                "message.max.bytes": LIMIT,
                "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
                "allow.everyone.if.no.acl.found": "true",
                # What a broker waits for when it comes back after a crash: that its former self is given up.
                "broker.session.timeout.ms": 1500,
                "broker.heartbeat.interval.ms": 300,
                "quota.window.num": 2,  # of a second each: a quota that is passed is soon over
                **self._config,
            }
            self.broker = Broker(self._folder, config, self._jvm_options, self._kafka)
            stack.callback(self.broker.stop)
            self.broker.start()
            self.tap.upstream = (HOST, self.broker.port)
            self._running = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._running.close()

    @property
    def bootstrap(self) -> str:
        return self.tap.bootstrap

    def log_tail(self) -> str:
        return self.broker.log_tail()

    def start(self) -> None:
        self.broker.start()
        self.tap.upstream = (HOST, self.broker.port)
        self.tap.listen()

    def kill(self) -> None:
        """At once, as a crash; `start` follows."""
        self.tap.refuse()
        self.broker.kill()

    def frozen(self) -> AbstractContextManager[None]:
        """The broker holds its connections, and answers nothing until the end."""
        return frozen(self.broker.pid)

    @contextmanager
    def losing_next_produce(self) -> Iterator[None]:
        """The broker takes a batch of what is sent within, but its answer is lost; it was when this ends."""
        taken = self._taken()
        self.tap.lose_next_produce()
        yield
        self.tap.wait_until(lambda: self._taken() > taken)

    def _taken(self) -> int:
        return sum(not produce.error_code for produce in self.tap.produces)

    # What a topic is like

    def create_topic(self, name: str, partitions: int = 1, config: Mapping[str, Any] | None = None) -> str:
        self.broker.create_topic(name, partitions, config)
        return name

    def topic_id(self, name: str) -> UUID:
        wanted = [MetadataRequest.MetadataRequestTopic(name=name)]
        (topic,) = self.broker.request(MetadataRequest(topics=wanted), METADATA_WITH_TOPIC_IDS).topics
        return UUID(str(topic.topic_id))

    def delete_topic(self, name: str) -> None:
        """Delete a topic of one partition; the broker has it no more when this returns."""
        request = DeleteTopicsRequest(topic_names=[name], timeout_ms=10_000)
        (answer,) = self.broker.request(request, 5).responses
        if answer.error_code:
            raise BrokerRefusalError(f"delete {name}", answer.error_code, answer.error_message)
        deadline = time.monotonic() + READ_SECONDS
        while (self.broker.log_dir / f"{name}-0").exists():
            if time.monotonic() > deadline:
                raise TimeoutError(f"{name} is still there:\n{self.log_tail()}")
            time.sleep(0.02)

    def alter_topic(self, name: str, config: Mapping[str, Any]) -> None:
        resource = IncrementalAlterConfigsRequest.AlterConfigsResource
        configs = [
            resource.AlterableConfig(name=key, config_operation=SET, value=str(value))
            for key, value in config.items()
        ]
        wanted = resource(resource_type=TOPIC_RESOURCE, resource_name=name, configs=configs)
        request = IncrementalAlterConfigsRequest(resources=[wanted], validate_only=False)
        (answer,) = self.broker.request(request, 0).responses
        if answer.error_code:
            raise BrokerRefusalError(f"alter {name}", answer.error_code, answer.error_message)

    def set_quota(self, client_id: str, name: str, value: float) -> None:
        """Of all clients with that id together."""
        entry = AlterClientQuotasRequest.EntryData
        wanted = entry(
            entity=[entry.EntityData(entity_type="client-id", entity_name=client_id)],
            ops=[entry.OpData(key=name, value=value, remove=False)],
        )
        request = AlterClientQuotasRequest(entries=[wanted], validate_only=False)
        (answer,) = self.broker.request(request, 1).entries
        if answer.error_code:
            raise BrokerRefusalError(f"quota of {client_id}", answer.error_code, answer.error_message)

    def add_partitions(self, name: str, count: int) -> None:
        """So that the topic has that many."""
        wanted = CreatePartitionsRequest.CreatePartitionsTopic(name=name, count=count, assignments=None)
        request = CreatePartitionsRequest(topics=[wanted], timeout_ms=10_000, validate_only=False)
        (answer,) = self.broker.request(request, 0).results
        if answer.error_code:
            raise BrokerRefusalError(f"add to {name}", answer.error_code, answer.error_message)

    def hide_config(self, topic: str) -> None:
        """Let anyone read, write and describe the topic, and so nobody describe its configuration."""
        self.allow_only(topic, ACLOperation.READ, ACLOperation.WRITE, ACLOperation.DESCRIBE)

    def allow_only(
        self, name: str, *operations: ACLOperation, kind: ACLResourceType = ACLResourceType.TOPIC
    ) -> None:
        """Let anyone do this with the topic, or another thing of that kind, and nothing else."""
        creations = [
            CreateAclsRequest.AclCreation(
                resource_type=kind,
                resource_name=name,
                principal="User:*",
                host="*",
                operation=operation,
                permission_type=ACLPermissionType.ALLOW,
            )
            for operation in operations
        ]
        for answer in self.broker.request(CreateAclsRequest(creations=creations), 1).results:
            if answer.error_code:
                raise BrokerRefusalError(f"allow {name}", answer.error_code, answer.error_message)

    # What came of it

    def refusals(self, topic: str) -> int:
        """How often the broker answered MESSAGE_TOO_LARGE."""
        refused = MessageSizeTooLargeError.errno
        return sum(p.topic == topic and p.error_code == refused for p in list(self.tap.produces))

    def batches(self, topic: str, partition: int = 0) -> list[kf.RecordBatch]:
        """Those of the broker's log as kafkafmt reads it, without markers."""
        log = LogDirectory(self.broker.log_dir).partition((topic, partition))
        return [batch for batch in log.batches() if not batch.is_control]

    def wait_for_end(self, topic: str, offset: int, partition: int = 0) -> None:
        """Wait for the log to end there. Raises TimeoutError where that takes too long."""
        deadline = time.monotonic() + READ_SECONDS
        log = LogDirectory(self.broker.log_dir).partition((topic, partition))
        while log.end_offset < offset:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{topic}-{partition} ends at {log.end_offset}, not at {offset}")
            time.sleep(0.02)

    def consume(self, topic: str, partition: int = 0, *, isolation: str = "read_uncommitted") -> list[Record]:
        """The records of a partition as librdkafka gives them."""
        settings = {
            "bootstrap.servers": self.bootstrap,
            "group.id": "unused",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": isolation,
            "fetch.wait.max.ms": 10,
        }
        consumer = Consumer(settings)
        end = LogDirectory(self.broker.log_dir).partition((topic, partition)).end_offset
        try:
            consumer.assign([TopicPartition(topic, partition, 0)])
            return [_record(message) for message in messages_up_to(end, consumer)]
        finally:
            consumer.close()


def messages_up_to(end: int, consumer: Consumer) -> Iterator[Message]:
    """What lies below an offset. A transaction may be committed before its marker is written, and so readable.

    The consumer is one that tells the end of a partition.
    """
    while True:
        message = consumer.poll(READ_SECONDS)
        if message is None:
            raise TimeoutError(f"nothing came in {READ_SECONDS} s")
        if message.error() is not None:
            if message.error().name() == "_PARTITION_EOF":
                if message.offset() >= end:
                    return
                continue
            raise AssertionError(message.error().str())
        yield message


def _record(message: Message) -> Record:
    return Record(
        message.offset(), message.timestamp()[1], message.key(), message.value(), message.headers() or []
    )
