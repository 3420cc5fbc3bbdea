"""Collect records into batches that wait to be sent to their brokers (Kafka's RecordAccumulator, KIP-126).

No module of this package opens a socket, starts a thread or reads a clock for batches: callers pass the time.
"""

from kafkafmt.client.accumulator.batch import Outcome, ProducerBatch
from kafkafmt.client.accumulator.errors import (
    AccumulatorClosedError,
    BufferExhaustedError,
    PossiblyDeliveredError,
)
from kafkafmt.client.accumulator.future import RecordFuture, RecordMetadata, RecordsFuture, RecordsOutcome
from kafkafmt.client.accumulator.metrics import AccumulatorMetrics
from kafkafmt.client.accumulator.options import AccumulatorOptions
from kafkafmt.client.accumulator.queues import Undelivered
from kafkafmt.client.accumulator.raw_batches import RequestLimits
from kafkafmt.client.accumulator.record_accumulator import RecordAccumulator
from kafkafmt.client.accumulator.sender_side import PartitionLeaders, ReadyCheck
from kafkafmt.client.accumulator.sequences import ProducerState, Sequences, Transaction

__all__ = [
    "AccumulatorClosedError",
    "AccumulatorMetrics",
    "AccumulatorOptions",
    "BufferExhaustedError",
    "Outcome",
    "PartitionLeaders",
    "PossiblyDeliveredError",
    "ProducerBatch",
    "ProducerState",
    "ReadyCheck",
    "RecordAccumulator",
    "RecordFuture",
    "RecordMetadata",
    "RecordsFuture",
    "RecordsOutcome",
    "RequestLimits",
    "Sequences",
    "Transaction",
    "Undelivered",
]
