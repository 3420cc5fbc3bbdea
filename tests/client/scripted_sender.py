"""A sender without threads: the test stands in the place of the cluster, and says when the sender runs."""

from __future__ import annotations

from typing import Any

from kafkafmt.client.accumulator import AccumulatorOptions
from kafkafmt.client.in_flight import InFlightBatches
from kafkafmt.client.io_thread import IoLoop
from kafkafmt.client.limits import TopicLimits
from kafkafmt.client.metrics import SenderMetrics
from kafkafmt.client.producer_accumulator import ProducerAccumulator
from kafkafmt.client.sender import Sender, SenderOptions, SenderParts
from kafkafmt.client.transactions import Transactions


def sender_of(loop: IoLoop, control: Any, *, transactional_id: str | None) -> Sender:
    """Return a sender of transactions; or, without an id, one that is not idempotent, and keeps the order."""
    in_flight, transactions = InFlightBatches(), None
    if transactional_id is not None:
        transactions = Transactions(
            transactional_id,
            in_flight=in_flight,
            broker_version=(3, 9),
            cluster=control.cluster,
            retry_backoff_ms=0,
        )
    accumulator = ProducerAccumulator(AccumulatorOptions(retry_backoff_ms=0), sequences=transactions)
    limits = TopicLimits(lambda *_: None, is_asked_for=False, max_age_ms=0, retry_backoff_ms=0)
    parts = SenderParts(loop, control, accumulator, limits, in_flight, transactions, SenderMetrics(None))
    options = SenderOptions(
        acks=-1,
        retries=10,
        max_request_size=1_000_000,
        request_timeout_ms=30_000,
        retry_backoff_ms=0,
        client_id="me",
        mutes=transactions is None,
    )
    return Sender(parts, options, lambda: None)
