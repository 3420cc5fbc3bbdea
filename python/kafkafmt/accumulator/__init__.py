"""Records that wait, in batches, for their brokers (Kafka's RecordAccumulator, KIP-126).

Nothing in here has a socket, a thread or a clock of its own.
"""

from kafkafmt.accumulator.batch import Outcome, ProducerBatch
from kafkafmt.accumulator.errors import AccumulatorClosedError, BufferExhaustedError, PossiblyDeliveredError
from kafkafmt.accumulator.future import RecordFuture, RecordMetadata, RecordsFuture, RecordsOutcome
from kafkafmt.accumulator.metrics import AccumulatorMetrics
from kafkafmt.accumulator.options import AccumulatorOptions
from kafkafmt.accumulator.queues import Undelivered
from kafkafmt.accumulator.record_accumulator import RecordAccumulator
from kafkafmt.accumulator.sender_side import Cluster, ReadyCheck
from kafkafmt.accumulator.sequences import ProducerState, Sequences

__all__ = [
    "AccumulatorClosedError",
    "AccumulatorMetrics",
    "AccumulatorOptions",
    "BufferExhaustedError",
    "Cluster",
    "Outcome",
    "PossiblyDeliveredError",
    "ProducerBatch",
    "ProducerState",
    "ReadyCheck",
    "RecordAccumulator",
    "RecordFuture",
    "RecordMetadata",
    "RecordsFuture",
    "RecordsOutcome",
    "Sequences",
    "Undelivered",
]
