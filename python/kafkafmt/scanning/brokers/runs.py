"""Read the batches of a partition in a range of offsets, as runs.

The first batch is returned without its records below the range, the last one whole. In ranges that are cut between
batches, each batch is returned by one range.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kafka import TopicPartition as KafkaTopicPartition
from kafka.errors import OffsetOutOfRangeError

from kafkafmt.client.errors import CorruptFetchedBatchError
from kafkafmt.records.runs import slice_run
from kafkafmt.records.trimming import rows_between
from kafkafmt.scanning.brokers.clients import assign
from kafkafmt.scanning.brokers.errors import BrokerError, broker_errors
from kafkafmt.scanning.data_loss import DataLossError
from kafkafmt.types import TopicPartition

if TYPE_CHECKING:
    from _kafkafmt.batches.scan import BatchRun
    from kafkafmt.client.raw_consumer import RawConsumer
    from kafkafmt.scanning.brokers.options import BrokerOptions

_LOG = logging.getLogger(__name__)

_POLL_MS = 1000


@dataclass(frozen=True)
class PartitionRange:
    """The offsets of a partition from `start` to before `end`."""

    topic_partition: TopicPartition
    start: int
    end: int

    def __str__(self) -> str:
        return f"partition {self.topic_partition}, offsets {self.start} to {self.end - 1}"


def read_runs(wanted: PartitionRange, options: BrokerOptions) -> Generator[BatchRun, None, None]:
    """Yield the batches of a range.

    Raises CorruptFetchedBatchError, with partition and offsets, for damage, unless it is skipped; DataLossError for
    deleted offsets, unless they are skipped; BrokerError.
    """
    if wanted.start >= wanted.end:
        return
    with broker_errors(options.clients.bootstrap_servers):
        consumer = options.clients.consumer(keep_control_batches=options.includes_control)
        try:
            yield from _RangeReader(consumer, wanted, options).runs()
        finally:
            consumer.close()


class _RangeReader:
    def __init__(self, consumer: RawConsumer, wanted: PartitionRange, options: BrokerOptions) -> None:
        self._consumer = consumer
        self._wanted = wanted
        self._options = options
        self._partition = KafkaTopicPartition(*wanted.topic_partition)

    def runs(self) -> Iterator[BatchRun]:
        """Yield the batches, until the consumer has reached the end of the range."""
        self._begin_at(self._wanted.start)
        while self._position < self._wanted.end:
            before = self._position
            for run in self._polled():
                _, stop = rows_between(run, end_offset=self._wanted.end)
                if stop:
                    yield slice_run(run, 0, stop)
            if self._position > before:
                self._extend()
            elif not self._is_new:
                self._begin_at(before)
            elif self._is_answered():
                return  # compaction left no batch up to the end
            elif time.monotonic() > self._deadline:
                waited = (
                    f"nothing came in {self._options.poll_timeout_ms} ms ({self._options.names.poll_timeout})"
                )
                raise BrokerError(f"{self._wanted}: at offset {before} {waited}")

    @property
    def _position(self) -> int:
        position = self._consumer.position(self._partition)
        assert position is not None, "it was set when the partition was assigned"
        return position

    def _begin_at(self, offset: int) -> None:
        assign(self._consumer, {self._wanted.topic_partition: offset})
        self._extend()
        self._is_new = True  # nothing was read since

    def _extend(self) -> None:
        self._deadline = time.monotonic() + self._options.poll_timeout_ms / 1000
        self._is_new = False

    def _is_answered(self) -> bool:
        """Return whether the broker has answered at this position, and its log reaches the end of the range."""
        highwater = self._consumer.highwater(self._partition)
        return highwater is not None and highwater >= self._wanted.end

    def _polled(self) -> list[BatchRun]:
        try:
            runs: list[BatchRun] = self._consumer.poll_runs(timeout_ms=_POLL_MS).get(self._partition, [])
        except CorruptFetchedBatchError as error:
            if self._options.on_corrupt == "fail" or error.next_offset is None:
                raise
            _LOG.warning("skipped offsets %d to %d: %s", error.offset, error.next_offset - 1, error)
            self._begin_at(error.next_offset)
        except OffsetOutOfRangeError:
            self._skip_lost()
        else:
            return runs
        return []

    def _skip_lost(self) -> None:
        (first,) = self._consumer.beginning_offsets([self._partition]).values()
        (end,) = self._consumer.end_offsets([self._partition]).values()
        position = self._position
        what = f"{self._wanted}: expected offset {position}, found the log to have {first} to {end - 1}"
        if self._options.fails_on_data_loss:
            advice = f"{self._options.names.skip_data_loss} continues with the remaining records"
            raise DataLossError(f"{what}; {advice}")
        _LOG.warning("%s: continuing with the remaining records", what)
        self._begin_at(first if position < first else self._wanted.end)
