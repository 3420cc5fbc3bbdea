"""A consumer that follows a topic, through librdkafka.

`python -m bench.endurance.load.consuming FILE SERVER TOPIC --session SECONDS OPTIONS`; the options are in `main`.

It gets every record from offset 0 on, each once, in order, and at the offset of its number. Every `--session` seconds
it closes its connections and opens new ones. With `--group` it joins a group and resumes at the offsets that it has
committed. With `--lag` it measures the time from `send` to the arrival of records.
"""

from __future__ import annotations

import argparse
import threading
import time

from confluent_kafka import Consumer, Message, TopicPartition

from bench.endurance.load.program import LoadError, Measurements, argument_parser, run_program
from bench.endurance.load.releases import settings_of
from bench.endurance.load.values import stamp_of

_AT_ONCE, _WAIT_SECONDS = 500, 0.2
_COMMIT_SECONDS = 2.0
_LAG_EVERY = 16  # records


class Follower:
    """Knows the next offset of each partition over all sessions."""

    def __init__(self, arguments: argparse.Namespace, measurements: Measurements) -> None:
        self._topic, self._group, self._has_lag = arguments.topic, arguments.group, arguments.lag
        self._next_offsets = dict.fromkeys(range(arguments.partitions), 0)
        self._measurements = measurements
        self._settings = {
            "bootstrap.servers": arguments.server,
            "group.id": arguments.group or "none",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "queued.max.messages.kbytes": 4096,
            "session.timeout.ms": 30_000,
            **settings_of(arguments.release),
        }

    def run(self, session_seconds: float, stopping: threading.Event) -> None:
        """Consume for that time, or until the event. Raises LoadError."""
        consumer = Consumer(self._settings)
        try:
            if self._group:
                consumer.subscribe([self._topic])
            else:
                consumer.assign([TopicPartition(self._topic, *each) for each in self._next_offsets.items()])
            now = time.monotonic()
            end, commit_at = now + session_seconds, now + _COMMIT_SECONDS
            while now < end and not stopping.is_set():
                for message in consumer.consume(_AT_ONCE, _WAIT_SECONDS):
                    self._take(message)
                now = time.monotonic()
                if self._group and (now >= commit_at or now >= end or stopping.is_set()):
                    self._commit(consumer)
                    commit_at = now + _COMMIT_SECONDS
        finally:
            consumer.close()
        self._measurements.count(connections=1)

    def _take(self, message: Message) -> None:
        """Check a record."""
        where = f"{self._topic}-{message.partition()}"
        if message.error() is not None:
            raise LoadError(f"{where}: {message.error()}")
        stamp, expected = stamp_of(message.value()), self._next_offsets[message.partition()]
        if not message.offset() == stamp.number == expected:
            raise LoadError(
                f"{where}: expected offset {expected}, found offset {message.offset()} of record {stamp.number}"
            )
        self._next_offsets[message.partition()] += 1
        self._measurements.count(records=1, bytes=len(message.value()))
        if self._has_lag and stamp.number % _LAG_EVERY == 0:
            self._measurements.took((time.monotonic_ns() - stamp.sent_ns) / 1e9)

    def _commit(self, consumer: Consumer) -> None:
        offsets = [TopicPartition(self._topic, *each) for each in self._next_offsets.items() if each[1]]
        if not offsets or not consumer.assignment():
            return
        for committed in consumer.commit(offsets=offsets, asynchronous=False):
            if committed.error is not None:
                raise LoadError(f"{self._topic}, commit of group {self._group}: {committed.error}")


def main() -> None:
    parser = argument_parser("consuming", __doc__)
    parser.add_argument("topic")
    parser.add_argument("--partitions", type=int, required=True)
    parser.add_argument("--group", default="")
    parser.add_argument("--release", default="")
    parser.add_argument("--lag", action="store_true")
    run_program(parser, Follower)


if __name__ == "__main__":
    main()
