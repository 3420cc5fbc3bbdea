"""What both consumers share: waiting for data and returning it, with kafka-python's public methods and options."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import kafka.errors as kafka_errors
from kafka.structs import OffsetAndMetadata

from kafkafmt.client.consumer_control import ConsumerControl, left_ms
from kafkafmt.client.group_membership import poll_group

if TYPE_CHECKING:
    from kafka.consumer.fetcher import ConsumerRecord
    from kafka.structs import TopicPartition
    from typing_extensions import Self

log = logging.getLogger(__name__)

# While data flows, groups and positions are looked at this often.
_CONTROL_SECONDS = 0.1


class BaseConsumer(ConsumerControl):
    """A consumer with the methods of kafka-python's KafkaConsumer. Subclasses open and return what was fetched."""

    _is_coordinator_lost = False

    def _poll_with(
        self, take: Callable[[Any, int], list[Any]], timeout_ms: float, most: int | None
    ) -> dict[TopicPartition, list[Any]]:
        """Wait up to `timeout_ms` for data, and take up to `most` records."""
        if timeout_ms < 0:
            raise ValueError("Timeout must not be negative")
        most = self.config["max_poll_records"] if most is None else most
        if not isinstance(most, int):
            raise TypeError("max_records must be an integer")
        if most <= 0:
            raise ValueError("max_records must be positive")
        if self._closed:
            raise kafka_errors.IllegalStateError("KafkaConsumer is closed")
        deadline = time.monotonic() + timeout_ms / 1000
        while True:
            is_due = self._fetches.is_changed or time.monotonic() >= self._next_control
            is_ready = not is_due or self._control_once(deadline)
            self._queue.raise_error()
            taken = self._fetches.take(most, take) if is_ready else {}
            if taken:
                return taken
            self._engine.want()
            if time.monotonic() >= deadline:
                return {}
            if not is_due:
                self._next_control = 0.0  # look at groups and positions before the wait
            elif is_ready and not self._fetches.is_changed and not self._fetches.release_parked():
                self._queue.wait(self._wait_seconds(deadline))
                self._next_control = 0.0

    def poll(
        self, timeout_ms: float = 0, max_records: int | None = None, update_offsets: bool = True
    ) -> dict[TopicPartition, list[ConsumerRecord]]:
        """Wait up to `timeout_ms` for records, and return up to `max_records` of them, by partition.

        max_records: None for `max_poll_records`. update_offsets: False to leave the positions before the records.
        """
        polled = self._poll_records(timeout_ms, max_records)
        if not update_offsets:
            self._move_back(polled)
        return polled

    def _poll_records(
        self, timeout_ms: float, max_records: int | None
    ) -> dict[TopicPartition, list[ConsumerRecord]]:
        raise NotImplementedError

    def _move_back(self, polled: Iterable[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata]:
        """Set positions to those before the last poll. Return those after it."""
        after = {}
        for partition in polled:
            state = self._subscription.assignment[partition]
            after[partition] = state.position
            state.position = self._fetches.positions_before[partition]
        return after

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> ConsumerRecord:
        """Return the next record, and move its position after it. Ends after `consumer_timeout_ms` without one."""
        if self._closed:
            raise StopIteration("KafkaConsumer closed")
        timeout_ms = self.config["consumer_timeout_ms"]
        deadline = time.monotonic() + (timeout_ms / 1000 if timeout_ms >= 0 else float("inf"))
        while time.monotonic() < deadline:
            if self._iterator is None:
                self._iterator = self._iterate(left_ms(deadline) or 0)
            try:
                return next(self._iterator)
            except StopIteration:
                self._iterator = None
        raise StopIteration

    def _iterate(self, timeout_ms: float) -> Iterator[ConsumerRecord]:
        """Yield the records of one poll. Stop with a partition that is not fetchable any more: it is fetched again."""
        polled = self.poll(timeout_ms)
        after = self._move_back(polled)
        states = {partition: self._subscription.assignment[partition] for partition in polled}
        for partition, records in polled.items():
            state = states[partition]
            for record in records:
                if self._subscription.assignment.get(partition) is not state or not state.is_fetchable():
                    break
                state.position = OffsetAndMetadata(record.offset + 1, "", record.leader_epoch)
                yield record
            else:
                state.position = after[partition]

    def _control_once(self, deadline: float) -> bool:
        """Poll the group, resolve positions and tell the engine of them. Return False after a timeout."""
        self._await_topics(left_ms(deadline))
        try:
            if not poll_group(self._coordinator, left_ms(deadline)):
                return False
            self._resolve_positions(left_ms(deadline))  # with committed offsets
        except kafka_errors.RetriableError as error:  # as while the coordinator restarts
            level = logging.DEBUG if self._is_coordinator_lost else logging.WARNING
            log.log(level, "the coordinator of group %s is asked again: %s", self.config["group_id"], error)
            self._is_coordinator_lost = True
            time.sleep(max(min(self.config["retry_backoff_ms"] / 1000, deadline - time.monotonic()), 0))
            return False
        self._is_coordinator_lost = False
        self._begin_resets()
        self._validate_positions()
        self._resets.end_all()
        self._fetches.sync()
        self._next_control = time.monotonic() + _CONTROL_SECONDS
        return True

    def _wait_seconds(self, deadline: float) -> float:
        seconds = min(deadline - time.monotonic(), _CONTROL_SECONDS)
        if self.config["group_id"] is not None:
            seconds = min(seconds, self._coordinator.time_to_next_poll())
        return max(seconds, 0)
