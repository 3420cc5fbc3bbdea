"""A transactional producer whose user lacks a permission raises, and does not ask again and again."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import kafka.errors
import pytest
from kafka import KafkaProducer
from kafka.protocol.admin import (
    ACLOperation,
    ACLPermissionType,
    ACLResourceType,
    CreateAclsRequest,
)
from kafka.protocol.metadata import FindCoordinatorRequest
from kafka.protocol.producer import AddOffsetsToTxnRequest
from kafka.structs import OffsetAndMetadata

from client.cluster import Cluster
from client.scripted_sender import sender_of
from client.sending import ANSWER_SECONDS
from kafkafmt import TopicPartition
from kafkafmt.client.io_thread import IoLoop
from kafkafmt.client.sender import Sender
from kafkafmt.client.transaction_requests import GROUP, TRANSACTION
from kafkafmt.client.transactions import Transactions
from kafkafmt.net import Producer

GROUP_DENIED = kafka.errors.GroupAuthorizationFailedError
ID_DENIED = kafka.errors.TransactionalIdAuthorizationFailedError
ABORTABLE = kafka.errors.TransactionAbortableError
OFFSETS = {TopicPartition("topic", 0): OffsetAndMetadata(5, "", -1)}
MOST_REQUESTS = 20


class Coordinators:
    """The cluster's part for a sender: it answers the requests of transactions when the test lets it.

    errors: the errors of lookups, by the type of the coordinator.
    """

    need_update = False
    config = KafkaProducer.DEFAULT_CONFIG

    def __init__(self) -> None:
        self.errors: dict[int, type[kafka.errors.BrokerResponseError]] = {}
        self.asked: deque[tuple[Any, Callable[[Any], object]]] = deque()
        self.cluster = self

    def add_coordinator(self, found: Any, kind: Any, key: str) -> str:
        return f"{kind.name}-{key}"

    def ask(
        self, message: Any, io: object, on_done: Callable[[Any], object], node_id: str | None = None
    ) -> None:
        self.asked.append((message, on_done))

    def answer(self) -> None:
        """Answer all requests, and those that follow from the answers."""
        for _ in range(MOST_REQUESTS):
            if not self.asked:
                return
            self.answer_one()
        raise AssertionError(f"{MOST_REQUESTS} requests, and more wait")

    def answer_one(self) -> Any:
        message, on_done = self.asked.popleft()
        error_code = 0
        if isinstance(message, FindCoordinatorRequest) and message.key_type in self.errors:
            error_code = self.errors[message.key_type].errno
        on_done(SimpleNamespace(coordinators=[], error_code=error_code, producer_id=7, producer_epoch=0))
        return message


@pytest.fixture
def loop() -> Iterator[IoLoop]:
    loop = asyncio.new_event_loop()
    yield IoLoop(loop)
    loop.close()


@pytest.fixture
def coordinators() -> Coordinators:
    return Coordinators()


@pytest.fixture
def sender(loop: IoLoop, coordinators: Coordinators) -> Sender:
    return sender_of(loop, coordinators, transactional_id="id")


def begin(sender: Sender, coordinators: Coordinators) -> Transactions:
    """Begin a transaction."""
    transactions = sender._transactions
    assert transactions is not None
    initialized = transactions.initialize()
    sender.run()
    coordinators.answer()
    assert initialized.wait(0)
    transactions.begin()
    return transactions


# Lookups


@pytest.mark.parametrize("error", [ID_DENIED, GROUP_DENIED, ABORTABLE])
def test_initialize_when_the_coordinator_may_not_be_looked_up_then_raises(
    sender: Sender, coordinators: Coordinators, error: type[kafka.errors.BrokerResponseError]
) -> None:
    coordinators.errors[TRANSACTION.value] = error
    assert sender._transactions is not None
    initialized = sender._transactions.initialize()
    sender.run()
    coordinators.answer()
    with pytest.raises(error):
        initialized.wait(0)


@pytest.mark.parametrize("error", [ID_DENIED, GROUP_DENIED, ABORTABLE])
def test_abort_when_the_coordinator_may_not_be_looked_up_then_raises_and_the_producer_says_why(
    sender: Sender, coordinators: Coordinators, error: type[kafka.errors.BrokerResponseError]
) -> None:
    transactions = begin(sender, coordinators)
    transactions.offsets_added()
    transactions.forget_coordinator(TRANSACTION)
    coordinators.errors[TRANSACTION.value] = error
    aborted = transactions.begin_abort()
    sender.run()
    coordinators.answer()
    with pytest.raises(error):
        aborted.wait(0)
    assert isinstance(transactions.last_error, error)


def test_offsets_when_their_group_may_not_be_looked_up_then_raise_and_the_transaction_aborts(
    sender: Sender, coordinators: Coordinators
) -> None:
    transactions = begin(sender, coordinators)
    coordinators.errors[GROUP.value] = GROUP_DENIED
    sent = transactions.send_offsets(OFFSETS, "group")
    sender.run()
    coordinators.answer()
    with pytest.raises(GROUP_DENIED, match="group"):
        sent.wait(0)
    aborted = transactions.begin_abort()
    sender.run()
    coordinators.answer()
    assert aborted.wait(0)


def test_offsets_when_their_group_may_not_be_looked_up_during_an_abort_then_raise_and_the_abort_ends(
    sender: Sender, coordinators: Coordinators
) -> None:
    transactions = begin(sender, coordinators)
    coordinators.errors[GROUP.value] = GROUP_DENIED
    sent = transactions.send_offsets(OFFSETS, "group")
    sender.run()
    assert isinstance(coordinators.answer_one(), AddOffsetsToTxnRequest)
    aborted = transactions.begin_abort()
    coordinators.answer()
    with pytest.raises(GROUP_DENIED, match="group"):
        sent.wait(0)
    assert aborted.wait(0)


# With a broker


def allow_nobody_else(cluster: Cluster, kind: ACLResourceType, name: str, operation: ACLOperation) -> None:
    """Let only a user that does not exist do anything with the resource but `operation`, which all may do."""
    creation = partial(
        CreateAclsRequest.AclCreation,
        resource_type=kind,
        resource_name=name,
        host="*",
        permission_type=ACLPermissionType.ALLOW,
    )
    creations = [
        creation(principal="User:nobody", operation=ACLOperation.ALL),
        creation(principal="User:*", operation=operation),
    ]
    for answer in cluster.broker.request(CreateAclsRequest(creations=creations), 1).results:
        assert not answer.error_code, answer.error_message


@pytest.mark.broker
@pytest.mark.xdist_group("net")
def test_transactions_when_the_id_is_not_permitted_then_raise(cluster: Cluster, topic: str) -> None:
    allow_nobody_else(cluster, ACLResourceType.TRANSACTIONAL_ID, topic, ACLOperation.DESCRIBE)
    with (
        Producer(bootstrap_servers=cluster.bootstrap, transactional_id=topic) as producer,
        pytest.raises(ID_DENIED),
    ):
        producer.init_transactions(ANSWER_SECONDS)


@pytest.mark.broker
@pytest.mark.xdist_group("net")
@pytest.mark.parametrize("operation", [ACLOperation.DESCRIBE, ACLOperation.DELETE], ids=lambda one: one.name)
def test_offsets_when_the_group_is_not_permitted_then_raise_and_the_next_transaction_is_committed(
    cluster: Cluster, topic: str, operation: ACLOperation
) -> None:
    allow_nobody_else(cluster, ACLResourceType.GROUP, topic, operation)
    with Producer(bootstrap_servers=cluster.bootstrap, transactional_id=topic) as producer:
        producer.init_transactions(ANSWER_SECONDS)
        producer.begin_transaction()
        producer.send(topic, b"aborted")
        with pytest.raises(GROUP_DENIED, match=topic):
            producer.send_offsets_to_transaction(
                {TopicPartition(topic, 0): OffsetAndMetadata(0, "", -1)}, topic
            )
        producer.abort_transaction(ANSWER_SECONDS)
        producer.begin_transaction()
        producer.send(topic, b"committed")
        producer.commit_transaction(ANSWER_SECONDS)
    committed = cluster.consume(topic, isolation="read_committed")
    assert [record.value for record in committed] == [b"committed"]
