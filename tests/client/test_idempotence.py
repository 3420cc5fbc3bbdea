"""An idempotent producer outlives what becomes of its batches: kafka-python's gives up, or waits for ever."""

from __future__ import annotations

import kafka.errors
import pytest
from kafka.net.compat import KafkaNetClient
from kafka.producer.transaction_manager import ProducerIdAndEpoch, TransactionManager, TransactionState

from client.cluster import Cluster
from client.sending import ANSWER_SECONDS, expiring
from kafkafmt import TopicPartition
from kafkafmt.client.accumulator import ProducerBatch, ProducerState
from kafkafmt.client.limits import TopicLimits
from kafkafmt.client.sender_accumulator import ProducerAccumulator, SenderAccumulator
from kafkafmt.client.transactions import ProducerTransactions
from kafkafmt.net import Producer

PARTITION = TopicPartition("topic", 0)
FATAL = TransactionManager.ERROR_CLASS_FATAL
RETRIABLE = TransactionManager.ERROR_CLASS_RETRIABLE
ABORTABLE = TransactionManager.ERROR_CLASS_ABORTABLE
NEEDS_EPOCH_BUMP = TransactionManager.ERROR_CLASS_NEEDS_EPOCH_BUMP
NEEDS_PRODUCER_ID_RESET = TransactionManager.ERROR_CLASS_NEEDS_PRODUCER_ID_RESET


class Batch:
    """What is asked of a batch that failed: whether it was numbered, by whom, and whether it may have arrived."""

    topic_partition = PARTITION

    def __init__(self, producer_id: int | None, *, is_in_doubt: bool = False) -> None:
        self.has_sequence = producer_id is not None
        self.producer_id = -1 if producer_id is None else producer_id
        self.producer_epoch = 0
        self.is_in_doubt = is_in_doubt


def transactions(
    transactional_id: str | None = None, api_version: tuple[int, int] = (3, 9)
) -> ProducerTransactions:
    manager = ProducerTransactions(transactional_id=transactional_id, api_version=api_version)
    manager.set_producer_id_and_epoch(ProducerIdAndEpoch(7, 0))
    return manager


@pytest.mark.parametrize(
    ("error", "producer_id", "outcome"),
    [
        (kafka.errors.MessageSizeTooLargeError, 7, RETRIABLE),  # refused: it fails alone
        (kafka.errors.TopicAuthorizationFailedError, 7, RETRIABLE),
        (kafka.errors.KafkaTimeoutError, 7, NEEDS_EPOCH_BUMP),  # it may have arrived
        (kafka.errors.UnknownError, 7, NEEDS_EPOCH_BUMP),
        (kafka.errors.OutOfOrderSequenceNumberError, 7, NEEDS_EPOCH_BUMP),
        (kafka.errors.KafkaTimeoutError, None, RETRIABLE),  # never sent
        (kafka.errors.KafkaTimeoutError, 6, RETRIABLE),  # sent under an id of the past
        (kafka.errors.ClusterAuthorizationFailedError, 7, FATAL),
    ],
)
def test_what_becomes_of_an_idempotent_producer_when_a_batch_fails(
    error: type[Exception], producer_id: int | None, outcome: str
) -> None:
    assert transactions().classify_batch_error(error(), Batch(producer_id)) == outcome


def test_numbers_of_what_is_refused_and_may_have_arrived_before_are_not_given_again() -> None:
    in_doubt = Batch(7, is_in_doubt=True)
    assert (
        transactions().classify_batch_error(kafka.errors.MessageSizeTooLargeError(), in_doubt)
        == NEEDS_EPOCH_BUMP
    )


@pytest.mark.parametrize("error", [kafka.errors.MessageSizeTooLargeError, kafka.errors.KafkaTimeoutError])
def test_a_transaction_is_aborted_when_a_batch_fails(error: type[Exception]) -> None:
    assert transactions("id").classify_batch_error(error(), Batch(7)) == ABORTABLE


def test_brokers_before_epochs_could_be_bumped_are_asked_for_another_producer_id() -> None:
    manager = transactions(api_version=(2, 4))
    outcome = manager.classify_batch_error(kafka.errors.KafkaTimeoutError(), Batch(7))
    assert outcome == NEEDS_PRODUCER_ID_RESET
    manager.reset_producer_id()
    manager.init_producer_id()
    assert manager._current_state is TransactionState.INITIALIZING


def test_sequence_numbers_follow_one_another_and_wrap() -> None:
    manager = transactions()
    manager.set_sequence_number(PARTITION, 2**31 - 10)
    given = [manager.assign(PARTITION, 10).base_sequence for _ in range(3)]
    assert given == [2**31 - 10, 0, 10]


def test_numbers_that_are_taken_back_are_given_again() -> None:
    manager = transactions()
    first = manager.assign(PARTITION, 10)
    manager.take_back(PARTITION, first)
    assert manager.assign(PARTITION, 5) == first == ProducerState(7, 0, 0)


def test_numbers_of_a_producer_id_of_the_past_are_not_taken_back() -> None:
    manager = transactions()
    manager.assign(PARTITION, 10)
    manager.take_back(PARTITION, ProducerState(6, 0, 3))
    assert manager.assign(PARTITION, 5).base_sequence == 10


def test_numbers_that_are_taken_back_while_the_epoch_is_bumped_do_not_go_into_the_next_one() -> None:
    """A broker refuses an epoch that does not begin with 0."""
    manager = transactions()
    manager._current_state = TransactionState.READY
    manager.assign(PARTITION, 10)
    refused = manager.assign(PARTITION, 10)
    manager.bump_producer_id_and_epoch()
    manager.take_back(PARTITION, refused)
    assert manager.assign(PARTITION, 5).base_sequence == 0


def test_numbers_of_a_batch_that_failed_before_it_was_refused_are_not_taken_back() -> None:
    """They may have gone to others since: in the next transaction, which goes on under the same epoch."""
    manager = transactions("id")
    limits = TopicLimits(KafkaNetClient, is_asked_for=False, max_age_ms=0, retry_backoff_ms=0)
    sender_side = SenderAccumulator(
        ProducerAccumulator(sequences=manager),
        client=KafkaNetClient,
        transactions=manager,
        limits=limits,
        metrics=None,
        tells_offsets=True,
    )
    batch = ProducerBatch(PARTITION, b"", count=10, created_ms=0)
    batch.producer_state = manager.assign(PARTITION, 10)
    refusal = kafka.errors.MessageSizeTooLargeError()
    assert sender_side.fail(batch, kafka.errors.KafkaTimeoutError(), lambda _: refusal)
    assert not sender_side.fail(batch, refusal, lambda _: refusal)
    assert manager.assign(PARTITION, 5).base_sequence == 10


@pytest.mark.broker
@pytest.mark.xdist_group("net")
def test_records_that_expire_in_flight_do_not_end_the_producer(cluster: Cluster, topic: str) -> None:
    options = {"request_timeout_ms": 1000, "reconnect_backoff_max_ms": 200}
    with Producer(bootstrap_servers=cluster.bootstrap, **options) as producer:
        producer.send(topic, b"before").get(ANSWER_SECONDS)
        with cluster.frozen():
            with expiring(producer, 1500):
                expired = producer.send(topic, b"expired")
                with pytest.raises(kafka.errors.KafkaTimeoutError):
                    expired.get(ANSWER_SECONDS)
            after = producer.send(topic, b"after")
        after.get(ANSWER_SECONDS)
    values = [record.value for batch in cluster.batches(topic) for record in batch]
    assert [value for value in values if value != b"expired"] == [b"before", b"after"]
