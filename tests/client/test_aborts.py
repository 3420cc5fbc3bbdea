"""An abort ends the transaction in the cluster, after its records, and whatever came before."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import kafka.errors
import pytest

from client.sending import ANSWER_SECONDS
from client.test_idempotence import PARTITION, Sending
from kafkafmt.client.in_flight import InFlightBatches
from kafkafmt.client.transaction_requests import AddPartitions, EndTransaction, InitProducerId
from kafkafmt.client.transactions import Transactions


def in_transaction() -> Transactions:
    """A producer in a transaction with a partition that is not added yet."""
    transactions = Transactions("id", in_flight=InFlightBatches(), broker_version=(3, 9))
    transactions.initialize()
    request = transactions.next_request(lambda: False)
    assert isinstance(request, InitProducerId)
    transactions.handle_outcome(request, SimpleNamespace(error_code=0, producer_id=7, producer_epoch=0))
    transactions.begin()
    transactions.add_partition(PARTITION, transactions.open_transaction())
    return transactions


def test_abort_when_the_response_to_the_first_request_was_lost_then_the_coordinator_ends_the_transaction() -> (
    None
):
    transactions = in_transaction()
    adding = transactions.next_request(lambda: False)
    assert isinstance(adding, AddPartitions)
    transactions.handle_outcome(adding, kafka.errors.RequestTimedOutError())
    transactions.fail(kafka.errors.KafkaTimeoutError("the batch has expired"))
    assert transactions.next_request(lambda: False) is adding
    answer = SimpleNamespace(partition_index=PARTITION.partition, partition_error_code=0)
    topic = SimpleNamespace(name=PARTITION.topic, results_by_partition=[answer])
    transactions.handle_outcome(adding, SimpleNamespace(results_by_topic_v3_and_below=[topic]))
    transactions.begin_abort()
    assert isinstance(transactions.next_request(lambda: False), EndTransaction)


def test_abort_when_no_request_was_sent_then_the_coordinator_is_not_asked() -> None:
    transactions = in_transaction()
    transactions.fail(kafka.errors.KafkaTimeoutError("the batch has expired"))
    assert transactions.next_request(lambda: False) is None
    result = transactions.begin_abort()
    assert transactions.next_request(lambda: False) is None
    assert result.wait(0)


def test_abort_when_a_commit_waits_for_batches_then_only_the_abort_is_sent() -> None:
    sending = Sending("id")
    sending.begin_pipelining()
    sending.append(b"fails", b"in flight")
    failing, in_flight = sending.drain()
    committed = sending.transactions.begin_commit()
    sending.fail(failing, kafka.errors.InvalidRecordError)
    assert sending.take_requests() == []
    aborted = sending.transactions.begin_abort()
    with pytest.raises(kafka.errors.InvalidRecordError):
        committed.wait(0)
    assert sending.take_requests() == []
    sending.fail(in_flight, kafka.errors.InvalidRecordError)
    (end,) = sending.take_requests()
    assert end.message().committed is False
    sending.transactions.handle_outcome(end, SimpleNamespace(error_code=0))
    assert aborted.wait(0)


def test_abort_when_the_sender_waits_for_the_lock_of_the_batches_then_does_not_wait_for_it() -> None:
    """As a signal handler aborts whose thread has that lock."""
    transactions = in_transaction()
    transactions.next_request(lambda: False)
    transactions.begin_commit()

    def has_incomplete() -> bool:
        thread = threading.Thread(target=transactions.fail, args=[kafka.errors.KafkaTimeoutError()])
        thread.start()
        thread.join(ANSWER_SECONDS)
        return not thread.is_alive()

    assert transactions.next_request(has_incomplete) is None
    assert transactions.has_abortable_error


class LateLock:
    """A lock that another thread gets first, which calls `before`."""

    def __init__(self, lock: Any, before: Callable[[], object]) -> None:
        self._lock, self._before = lock, [before]

    def __enter__(self) -> None:
        while self._before:
            self._before.pop()()
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def test_abort_when_a_record_was_appended_just_before_then_waits_until_it_has_failed() -> None:
    transactions = in_transaction()
    appended: list[bytes] = []
    results = []

    def append_and_abort() -> None:
        appended.append(b"a")
        results.append(transactions.begin_abort())

    transactions._lock = LateLock(transactions._lock, append_and_abort)  # type: ignore[assignment]
    assert transactions.next_request(lambda: bool(appended)) is None
    assert not results[0].wait(0)
    appended.clear()
    assert transactions.next_request(lambda: bool(appended)) is None
    assert results[0].wait(0)
