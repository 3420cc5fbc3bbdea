"""Read the batches of partitions in ranges of offsets, as runs.

Batches are returned whole: the first and the last one of a range may have records outside it, unless the consumer trims
the first one. In ranges that are cut between batches, each batch is returned by one range.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kafka import TopicPartition as KafkaTopicPartition
from kafka.errors import OffsetOutOfRangeError

from kafkafmt.client.errors import CorruptFetchedBatchError
from kafkafmt.records.runs import slice_run
from kafkafmt.records.trimming import rows_between
from kafkafmt.scanning.brokers.cluster import SourceBrokers
from kafkafmt.scanning.brokers.errors import BrokerError, broker_errors
from kafkafmt.scanning.data_loss import DataLossError
from kafkafmt.types import TopicPartition

if TYPE_CHECKING:
    from _kafkafmt.batches.scan import BatchRun
    from kafkafmt.client.raw_consumer import RawConsumer
    from kafkafmt.scanning.brokers.options import BrokerOptions

_LOG = logging.getLogger(__name__)

_POLL_MS = 1000
_ALL_BATCHES = 2**31 - 1


@dataclass(frozen=True)
class PartitionRange:
    """The offsets of a partition from `start` to before `end`."""

    topic_partition: TopicPartition
    start: int
    end: int

    def __str__(self) -> str:
        return f"partition {self.topic_partition}, offsets {self.start} to {self.end - 1}"


def read_runs(wanted: PartitionRange, options: BrokerOptions) -> Generator[BatchRun, None, None]:
    """Yield the batches of a range. The first one is without its records below the range.

    Raises CorruptFetchedBatchError, with partition and offsets, for damage, unless it is skipped; DataLossError for
    deleted offsets, unless they are skipped; BrokerError.
    """
    if wanted.start >= wanted.end:
        return
    with broker_errors(options.clients.bootstrap_servers):
        consumer = options.clients.consumer(
            keep_control_batches=options.includes_control, check_crcs=options.checks_crcs
        )
        try:
            for _, run in RangeReader(consumer, [wanted], options).runs():
                yield run
        finally:
            consumer.close()


class RangeReader:
    """Reads ranges of different partitions, one after the other.

    While a range is read, the first batches of the next `ahead` ranges are fetched, too.
    """

    def __init__(
        self, consumer: RawConsumer, ranges: Sequence[PartitionRange], options: BrokerOptions, ahead: int = 0
    ) -> None:
        self._consumer = consumer
        self._options = options
        self._ahead = ahead
        self._left = deque(_RangeProgress(one, is_alone=not ahead) for one in ranges)
        self._by_key = {one.key: one for one in self._left}

    def runs(self) -> Generator[tuple[PartitionRange, BatchRun], None, None]:
        """Yield the batches of all ranges, with the range. Raises the errors of `read_runs`."""
        consumer = self._consumer
        consumer.assign(list(self._by_key))
        consumer.pause(*self._by_key)
        consumer.stop_at({one.key: one.wanted.end for one in self._left})
        for one in self._left:
            consumer.seek(one.key, one.wanted.start)
        while self._left:
            self._resume_next()
            yield from self._runs_of(self._left[0])
            consumer.pause(self._left.popleft().key)

    def _resume_next(self) -> None:
        for one in list(self._left)[: self._ahead + 1]:
            if not one.is_resumed and (not one.fetched or one is self._left[0]):
                one.is_resumed = True
                self._consumer.resume(one.key)
        current = self._left[0]
        self._extend(current)
        current.is_new = self._position(current) == current.wanted.start

    def _runs_of(self, current: _RangeProgress) -> Iterator[tuple[PartitionRange, BatchRun]]:
        """Yield the batches of a range, until the consumer has reached its end."""
        wanted = current.wanted
        while True:
            while current.fetched:
                run = current.fetched.popleft()
                _, stop = rows_between(run, end_offset=wanted.end)
                if stop:
                    yield wanted, slice_run(run, 0, stop)
            before = self._position(current)
            if before >= wanted.end:
                return
            is_polled = self._poll(current)
            if self._position(current) > before:
                self._extend(current)
            elif is_polled:
                continue  # batches of a later range
            elif not current.is_new:
                self._begin_at(current, before)
            elif self._is_answered(current) and self._is_conclusive(current, before):
                return  # compaction left no batch up to the end
            elif time.monotonic() > current.deadline:
                waited = (
                    f"nothing came in {self._options.poll_timeout_ms} ms ({self._options.names.poll_timeout})"
                )
                raise BrokerError(f"{wanted}: at offset {before} {waited}")

    def _position(self, one: _RangeProgress) -> int:
        position = self._consumer.position(one.key)
        assert position is not None, "it was set when the partition was assigned"
        return position

    def _begin_at(self, one: _RangeProgress, offset: int) -> None:
        """Read a partition anew, so that its `highwater` is None until the broker has answered."""
        assigned = self._consumer.assignment()
        paused = self._consumer.paused()
        self._consumer.assign(list(assigned - {one.key}))
        self._consumer.assign(list(assigned))
        self._consumer.seek(one.key, offset)
        if one.key in paused:
            self._consumer.pause(one.key)
        self._extend(one)
        one.is_new = True

    def _extend(self, one: _RangeProgress) -> None:
        one.deadline = time.monotonic() + self._options.poll_timeout_ms / 1000
        one.is_new = False

    def _is_answered(self, one: _RangeProgress) -> bool:
        """Return whether the broker has answered at this position, and its log reaches the end of the range."""
        highwater = self._consumer.highwater(one.key)
        return highwater is not None and highwater >= one.wanted.end

    def _is_conclusive(self, one: _RangeProgress, offset: int) -> bool:
        """Return whether an answer without batches means that the log has none from an offset on.

        A broker also answers so if batches of other partitions fill the response, or if it waits too long for tiered
        storage. So the partition is fetched alone, and below the offsets on the disks of its leader no answer counts.
        """
        if not one.is_alone:
            one.is_alone = True
            self._return_later(one)
            self._begin_at(one, offset)
            return False
        if one.local_start is None:
            with closing(SourceBrokers(self._options)) as cluster:
                one.local_start = cluster.local_beginning(one.wanted.topic_partition)
        return offset >= one.local_start

    def _poll(self, current: _RangeProgress) -> bool:
        """Keep what has arrived of each partition. Return whether that was anything.

        A later partition is paused once its first batches have arrived. An error of a later partition is raised when
        that is read: until then nothing is fetched ahead.
        """
        try:
            polled: Mapping[KafkaTopicPartition, list[BatchRun]]
            polled = self._consumer.poll_runs(_POLL_MS, _ALL_BATCHES)
        except CorruptFetchedBatchError as error:
            if error.topic_partition != current.key:
                self._return_later(current)
            elif self._options.on_corrupt == "fail" or error.next_offset is None:
                raise
            else:
                _LOG.warning("skipped offsets %d to %d: %s", error.offset, error.next_offset - 1, error)
                self._begin_at(current, error.next_offset)
            return True
        except OffsetOutOfRangeError as error:
            if current.key in error.args[0]:
                self._skip_lost(current)
            else:
                self._return_later(current)
            return True
        for key, runs in polled.items():
            one = self._by_key[key]
            one.fetched.extend(runs)
            if one is not current and one.is_resumed:
                one.is_resumed = False
                self._consumer.pause(key)
        return bool(polled)

    def _return_later(self, current: _RangeProgress) -> None:
        """Drop what was fetched of the ranges after the current one, and fetch nothing ahead any more."""
        self._ahead = 0
        for one in self._left:
            if one is not current and (one.is_resumed or one.fetched):
                one.fetched.clear()
                one.is_resumed = False
                self._consumer.pause(one.key)
                self._consumer.seek(one.key, one.wanted.start)

    def _skip_lost(self, one: _RangeProgress) -> None:
        (first,) = self._consumer.beginning_offsets([one.key]).values()
        (end,) = self._consumer.end_offsets([one.key]).values()
        position = self._position(one)
        what = f"{one.wanted}: expected offset {position}, found the log to have {first} to {end - 1}"
        if self._options.fails_on_data_loss:
            advice = f"{self._options.names.skip_data_loss} continues with the remaining records"
            raise DataLossError(f"{what}; {advice}")
        _LOG.warning("%s: continuing with the remaining records", what)
        self._begin_at(one, first if position < first else one.wanted.end)


class _RangeProgress:
    """How far a range was read.

    fetched: what the consumer has returned of it. is_resumed: whether the consumer fetches the partition. is_new:
    whether nothing was read since the partition was assigned. is_alone: whether no other partition is fetched with it.
    local_start: the first offset on the disks of the leader, if it was asked for. deadline: for the next batch.
    """

    def __init__(self, wanted: PartitionRange, *, is_alone: bool) -> None:
        self.wanted = wanted
        self.is_alone = is_alone
        self.local_start: int | None = None
        self.key = KafkaTopicPartition(*wanted.topic_partition)
        self.fetched: deque[BatchRun] = deque()
        self.is_resumed = False
        self.is_new = False
        self.deadline = 0.0
