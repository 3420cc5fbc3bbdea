"""An idempotent producer outlives what becomes of its batches, and gives each number once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import kafka.errors
import pytest

from client.cluster import Cluster
from client.sending import ANSWER_SECONDS, expiring
from kafkafmt import TopicPartition
from kafkafmt.client.accumulator import AccumulatorOptions, ProducerBatch, ProducerState
from kafkafmt.client.clock import monotonic_ms
from kafkafmt.client.delivery import Delivery
from kafkafmt.client.in_flight import InFlightBatches
from kafkafmt.client.limits import TopicLimits
from kafkafmt.client.metrics import SenderMetrics
from kafkafmt.client.produce_requests import ProducedPartition
from kafkafmt.client.producer_accumulator import ProducerAccumulator
from kafkafmt.client.transaction_requests import EndTransaction, InitProducerId
from kafkafmt.client.transactions import Consequence, Transactions
from kafkafmt.net import PossiblyDeliveredError, Producer

PARTITION = TopicPartition("topic", 0)
NODE = 1
REFUSED = kafka.errors.MessageSizeTooLargeError
OUT_OF_ORDER = kafka.errors.OutOfOrderSequenceNumberError


class Leader:
    """Metadata in which one node leads all partitions."""

    need_update = False

    def leader_for_partition(self, _: TopicPartition) -> int:
        return NODE

    def request_update(self) -> None:
        pass

    def update_partition_leader(self, *_: object) -> bool:
        return True


class Sending:
    """An accumulator and what becomes of its batches, with the test in place of brokers and of the sender."""

    def __init__(self, transactional_id: str | None = None, broker: tuple[int, ...] = (3, 9)) -> None:
        self.in_flight = InFlightBatches()
        self.transactions = Transactions(transactional_id, in_flight=self.in_flight, broker_version=broker)
        limits = TopicLimits(lambda *_: None, is_asked_for=False, max_age_ms=0, retry_backoff_ms=0)
        options = AccumulatorOptions(retry_backoff_ms=0)
        self.accumulator = ProducerAccumulator(options, sequences=self.transactions)
        self.delivery = Delivery(
            self.accumulator, self.transactions, limits, Leader(), SenderMetrics(None), float("inf")
        )
        if transactional_id is None:
            self.transactions.ensure_producer_id()
        else:
            self.transactions.initialize()
        self.answer_producer_id(7, 0)
        if transactional_id is not None:
            self.transactions.begin()
            self.transactions.add_partition(PARTITION, self.transactions.open_transaction())
            (partitions,) = self.take_requests()
            self.transactions.partitions_answered(partitions.partitions, is_added=True)

    def take_requests(self) -> list[Any]:
        requests = []
        while request := self.transactions.next_request(lambda: self.accumulator.has_incomplete):
            requests.append(request)
        return requests

    def answer_producer_id(self, producer_id: int, epoch: int) -> None:
        """To the one request that is there to send."""
        (request,) = self.take_requests()
        assert isinstance(request, InitProducerId)
        answer = SimpleNamespace(error_code=0, producer_id=producer_id, producer_epoch=epoch)
        self.transactions.handle_outcome(request, answer)

    def append(self, *values: bytes) -> list[Any]:
        """Each value in a batch of its own; returns the futures."""
        futures = []
        for value in values:
            appended = self.accumulator.append(PARTITION, 0, None, value, now_ms=monotonic_ms())
            assert appended is not None
            futures.append(appended[0])
            self.accumulator._queues.end_appends(PARTITION)
        return futures

    def drain(self) -> list[ProducerBatch]:
        """All that may be in flight now, in the order of sending."""
        drained = []
        while True:
            batches = self.accumulator.drain(Leader(), [NODE], 1_000_000, monotonic_ms())[NODE]
            if not batches:
                return drained
            for batch in batches:
                self.in_flight.add(batch, float("inf"))
                if not self.transactions.is_stale(batch):
                    self.transactions.numbers.sent(batch)
            drained += batches

    def answer(self, batch: ProducerBatch, offset: int) -> None:
        self.in_flight.remove(batch)
        self.delivery.answered(batch, ProducedPartition(b"topic", 0, 0, offset, -1, 0))

    def fail(self, batch: ProducerBatch, error: type[Exception]) -> None:
        self.in_flight.remove(batch)
        self.delivery.failed(batch, error())

    def begin_pipelining(self) -> int:
        """Have a first batch acknowledged; returns the offset after it."""
        self.append(b"first")
        (batch,) = self.drain()
        self.answer(batch, 0)
        return 1


def sequences(batches: list[ProducerBatch]) -> list[int]:
    return [batch.producer_state.base_sequence for batch in batches if batch.producer_state is not None]


# What a failure means


def failed_batch(producer_id: int | None, *, is_in_doubt: bool = False) -> ProducerBatch:
    batch = ProducerBatch(PARTITION, b"", count=1, created_ms=0)
    batch.producer_state = None if producer_id is None else ProducerState(producer_id, 0, 0)
    batch.may_have_arrived = is_in_doubt
    return batch


@pytest.mark.parametrize(
    ("error", "producer_id", "consequence"),
    [
        (REFUSED, 7, Consequence.NONE),  # it fails alone
        (kafka.errors.TopicAuthorizationFailedError, 7, Consequence.NONE),
        (kafka.errors.KafkaTimeoutError, 7, Consequence.NEW_PRODUCER_ID),  # it may have arrived
        (kafka.errors.UnknownError, 7, Consequence.NEW_PRODUCER_ID),
        (OUT_OF_ORDER, 7, Consequence.NEW_PRODUCER_ID),
        (kafka.errors.KafkaTimeoutError, None, Consequence.NONE),  # never sent
        (kafka.errors.KafkaTimeoutError, 6, Consequence.NONE),  # sent under an id of the past
        (kafka.errors.ClusterAuthorizationFailedError, 7, Consequence.FATAL),
    ],
)
def test_what_becomes_of_an_idempotent_producer_when_a_batch_fails(
    error: type[Exception], producer_id: int | None, consequence: Consequence
) -> None:
    assert Sending().transactions.consequence_of(error(), failed_batch(producer_id)) is consequence


def test_numbers_of_what_is_refused_and_may_have_arrived_before_are_not_given_again() -> None:
    in_doubt = failed_batch(7, is_in_doubt=True)
    assert Sending().transactions.consequence_of(REFUSED(), in_doubt) is Consequence.NEW_PRODUCER_ID


@pytest.mark.parametrize("error", [REFUSED, kafka.errors.KafkaTimeoutError])
def test_a_transaction_is_aborted_when_a_batch_fails(error: type[Exception]) -> None:
    assert Sending("id").transactions.consequence_of(error(), failed_batch(7)) is Consequence.ABORT


def test_batch_when_its_fate_is_unknown_then_an_idempotent_producer_requests_another_producer_id() -> None:
    sending = Sending()
    transactions = sending.transactions
    transactions.batch_failed(kafka.errors.KafkaTimeoutError(), failed_batch(7))
    assert not transactions.may_send(PARTITION)
    transactions.ensure_producer_id()
    sending.answer_producer_id(8, 0)
    assert transactions.assign(PARTITION, 1) == ProducerState(8, 0, 0)


@pytest.mark.parametrize(("error", "is_certain"), [(REFUSED, True), (kafka.errors.KafkaTimeoutError, False)])
def test_a_transaction_after_one_with_a_batch_of_unknown_fate_has_a_new_epoch(
    error: type[Exception], is_certain: bool
) -> None:
    """For the batch may have used its numbers."""
    sending = Sending("id")
    sending.append(b"value")
    (batch,) = sending.drain()
    batch.created_ms = float("-inf")  # no retry
    sending.fail(batch, error)
    result = sending.transactions.begin_abort()
    (end,) = sending.take_requests()
    assert isinstance(end, EndTransaction)
    sending.transactions.handle_outcome(end, SimpleNamespace(error_code=0))
    if not is_certain:
        assert not result.wait(0)
        sending.answer_producer_id(7, 1)
    assert result.wait(0)
    assert sending.transactions.epoch == (0 if is_certain else 1)
    assert sending.transactions.assign(PARTITION, 1).base_sequence == 0


@pytest.mark.parametrize(("error", "is_certain"), [(REFUSED, True), (kafka.errors.KafkaTimeoutError, False)])
def test_transaction_when_a_batch_has_an_unknown_fate_and_brokers_give_no_epoch_then_the_producer_ends(
    error: type[Exception], is_certain: bool
) -> None:
    transactions = Sending("id", broker=(2, 4)).transactions
    transactions.batch_failed(error(), failed_batch(7))
    assert (transactions.has_abortable_error, transactions.has_fatal_error) == (is_certain, not is_certain)
    if not is_certain:
        with pytest.raises(kafka.errors.KafkaError, match="error state"):
            transactions.begin_abort()


# Numbers


def test_sequence_numbers_follow_one_another_and_wrap() -> None:
    transactions = Sending().transactions
    transactions.numbers.set_next(PARTITION, 2**31 - 10)
    given = [transactions.assign(PARTITION, 10).base_sequence for _ in range(3)]
    assert given == [2**31 - 10, 0, 10]


def test_numbers_that_are_taken_back_are_given_again() -> None:
    transactions = Sending().transactions
    first = transactions.assign(PARTITION, 10)
    transactions.take_back(PARTITION, first)
    assert transactions.assign(PARTITION, 5) == first == ProducerState(7, 0, 0)


def test_numbers_of_a_producer_id_of_the_past_are_not_taken_back() -> None:
    transactions = Sending().transactions
    transactions.assign(PARTITION, 10)
    transactions.take_back(PARTITION, ProducerState(6, 0, 3))
    assert transactions.assign(PARTITION, 5).base_sequence == 10


def test_numbers_that_are_taken_back_while_the_producer_id_changes_are_not_those_of_the_next_one() -> None:
    """A broker refuses a producer that does not begin with 0."""
    sending = Sending()
    transactions = sending.transactions
    transactions.assign(PARTITION, 10)
    refused = transactions.assign(PARTITION, 10)
    transactions.reset_producer_id()
    transactions.take_back(PARTITION, refused)
    transactions.ensure_producer_id()
    sending.answer_producer_id(8, 0)
    transactions.take_back(PARTITION, refused)
    assert transactions.assign(PARTITION, 5) == ProducerState(8, 0, 0)


def test_numbers_of_a_batch_that_failed_before_it_was_refused_are_not_taken_back() -> None:
    """They may have gone to others since: in the next transaction, which goes on under the same epoch."""
    sending = Sending("id")
    sending.append(b"value")
    (batch,) = sending.drain()
    sending.accumulator.abort(kafka.errors.IllegalStateError("given up"))
    sending.fail(batch, REFUSED)
    assert sending.transactions.assign(PARTITION, 5).base_sequence == 1


# Several batches in flight


def test_batches_of_a_partition_are_in_flight_together_once_its_broker_knows_the_producer() -> None:
    """A broker takes any first number: if the first batch were refused, the second one would be appended."""
    sending = Sending()
    sending.append(*[b"value"] * 9)
    first = sending.drain()
    assert sequences(first) == [0]
    sending.answer(first[0], 0)
    assert sequences(sending.drain()) == [1, 2, 3, 4, 5]


def test_batches_after_a_lost_connection_are_sent_again_singly_with_their_numbers() -> None:
    sending = Sending()
    offset = sending.begin_pipelining()
    futures = sending.append(b"a", b"b", b"c")
    for batch in sending.drain():
        sending.fail(batch, kafka.errors.KafkaConnectionError)
    late = sending.append(b"d")
    for number in range(3):
        (batch,) = sending.drain()
        assert sequences([batch]) == [1 + number]
        sending.answer(batch, offset + number)
    (batch,) = sending.drain()
    assert sequences([batch]) == [4]
    sending.answer(batch, offset + 3)
    assert [future.get(0).offset for future in futures + late] == [1, 2, 3, 4]


def test_batches_behind_one_that_failed_return_to_the_queue_and_are_not_in_doubt() -> None:
    sending = Sending()
    sending.begin_pipelining()
    sending.append(b"a", b"b")
    first, second = sending.drain()
    sending.fail(first, kafka.errors.NotLeaderForPartitionError)
    sending.fail(second, OUT_OF_ORDER)
    assert second.in_doubt is None
    assert sequences([first, second]) == [1, 2]
    assert sending.drain() == [first]


def test_batches_behind_one_that_is_refused_get_its_numbers() -> None:
    sending = Sending()
    sending.begin_pipelining()
    (refused,) = sending.append(bytes(100))
    futures = sending.append(b"b", b"c")
    first, second, third = sending.drain()
    sending.fail(first, REFUSED)
    assert isinstance(refused.exception, REFUSED)
    late = sending.append(b"d")
    assert sending.drain() == []  # those in flight come first
    sending.fail(second, OUT_OF_ORDER)
    sending.fail(third, kafka.errors.KafkaConnectionError)
    again = sending.drain()
    assert again[:2] == [second, third]
    assert sequences(again) == [1, 2, 3]
    assert [batch.in_doubt for batch in again] == [None] * 3
    for number, batch in enumerate(again):
        sending.answer(batch, 1 + number)
    assert [future.get(0).offset for future in futures + late] == [1, 2, 3]


def test_batches_that_a_restarted_broker_has_and_refuses_are_told_by_a_later_one() -> None:
    """It remembers the last batch of a producer only, which it acknowledges again."""
    sending = Sending()
    sending.begin_pipelining()
    futures = sending.append(b"a", b"b", b"c")
    for batch in sending.drain():
        sending.fail(batch, kafka.errors.KafkaConnectionError)
    for _ in range(2):
        (batch,) = sending.drain()
        sending.fail(batch, OUT_OF_ORDER)
        assert not batch.is_done
    (batch,) = sending.drain()
    sending.answer(batch, 3)
    assert [future.get(0).offset for future in futures] == [1, 2, 3]
    assert not sending.accumulator.has_incomplete


def test_offsets_between_batches_of_other_producers_are_not_guessed() -> None:
    sending = Sending()
    sending.begin_pipelining()
    futures = sending.append(b"a", b"b")
    for batch in sending.drain():
        sending.fail(batch, kafka.errors.KafkaConnectionError)
    (batch,) = sending.drain()
    sending.fail(batch, OUT_OF_ORDER)
    (batch,) = sending.drain()
    sending.answer(batch, 5)
    assert [future.get(0).offset for future in futures] == [-1, 5]


def test_batch_in_doubt_when_a_later_one_is_acknowledged_under_other_numbers_then_is_possibly_delivered() -> (
    None
):
    """The broker has neither batch, and gets the second one under a producer id of its own."""
    sending = Sending()
    offset = sending.begin_pipelining()
    lost, late = sending.append(b"a", b"b")
    first, second = sending.drain()
    sending.fail(first, kafka.errors.KafkaConnectionError)
    sending.fail(second, OUT_OF_ORDER)
    assert sending.drain() == [first]
    sending.fail(first, OUT_OF_ORDER)
    assert not first.is_done
    sending.transactions.reset_producer_id()
    sending.transactions.ensure_producer_id()
    sending.answer_producer_id(8, 0)
    assert sending.drain() == [second]
    sending.fail(second, OUT_OF_ORDER)
    assert sending.drain() == [second]
    sending.answer(second, offset)
    assert isinstance(lost.exception, PossiblyDeliveredError)
    assert late.get(0).offset == offset
    assert not sending.accumulator.has_incomplete


def test_batches_that_no_broker_acknowledges_are_possibly_delivered() -> None:
    sending = Sending()
    sending.begin_pipelining()
    futures = sending.append(b"a", b"b")
    for batch in sending.drain():
        sending.fail(batch, kafka.errors.KafkaConnectionError)
    for _ in range(2):
        (batch,) = sending.drain()
        sending.fail(batch, OUT_OF_ORDER)
    assert all(isinstance(future.exception, PossiblyDeliveredError) for future in futures)
    sending.transactions.ensure_producer_id()
    sending.answer_producer_id(8, 0)
    sending.append(b"c")
    (batch,) = sending.drain()
    assert batch.producer_state == ProducerState(8, 0, 0)


def test_batches_in_flight_keep_others_back_when_the_producer_id_changes() -> None:
    """Else those would be appended before these, which are sent again."""
    sending = Sending()
    sending.begin_pipelining()
    sending.append(b"a", b"b")
    first, second = sending.drain()
    first.created_ms = float("-inf")
    sending.fail(first, kafka.errors.KafkaTimeoutError)
    sending.transactions.ensure_producer_id()
    sending.answer_producer_id(8, 0)
    sending.append(b"c")
    assert sending.drain() == []
    sending.fail(second, OUT_OF_ORDER)  # the first one has not arrived
    assert [batch.producer_state for batch in sending.drain()] == [ProducerState(8, 0, 0)]


# With a broker


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
