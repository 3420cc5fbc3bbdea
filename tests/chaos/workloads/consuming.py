"""A member of a group: `python -m chaos.workloads.consuming FOLDER NAME TOPICS SERVERS GROUP START`.

It is a consumer of kafkafmt. It writes down what it gets before it commits, so each record is delivered at least once.
It ends at SIGTERM.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path

import kafka.errors as kafka_errors
from kafka import ConsumerRebalanceListener, TopicPartition

from chaos.history import Writer, name_of, now
from kafkafmt import MemoryBudget
from kafkafmt.net import Consumer

BUDGET_BYTES = 8 << 20
POLL_MS = 300


class Assignments(ConsumerRebalanceListener):
    """Writes down each assignment of a partition."""

    def __init__(self, history: Writer) -> None:
        self._history = history

    def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        pass

    def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        self._history.write(f"g {now()} {one.topic} {one.partition}" for one in assigned)


def main(folder: str, name: str, topics: str, servers: str, group: str, start: str) -> None:
    is_over = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: is_over.set())
    history = Writer(Path(folder) / f"{name}.{start}.received")
    budget = MemoryBudget(BUDGET_BYTES)
    consumer = Consumer(
        bootstrap_servers=servers.split(","),
        group_id=group,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        isolation_level="read_committed",
        session_timeout_ms=10_000,
        heartbeat_interval_ms=1000,
        request_timeout_ms=15_000,
        reconnect_backoff_max_ms=1000,
        bootstrap_timeout_ms=60_000,
        budget=budget,
    )
    consumer.subscribe(topics.split(","), listener=Assignments(history))
    while not is_over.is_set():
        try:
            polled = consumer.poll(timeout_ms=POLL_MS)
            history.write(
                f"r {now()} {where.topic} {where.partition} {record.offset} {name_of(record.value)}"
                for where, records in polled.items()
                for record in records
            )
            if polled:
                consumer.commit()
                history.write(
                    f"k {now()} {where.topic} {where.partition} {records[-1].offset + 1}"
                    for where, records in polled.items()
                )
        except kafka_errors.KafkaError as error:
            print(f"{time.monotonic():.2f} {error!r}", flush=True)
    consumer.close()
    if budget.peak_bytes > budget.total_bytes:
        sys.exit(f"the consumer held {budget.peak_bytes} bytes of {budget.total_bytes}")


if __name__ == "__main__":
    main(*sys.argv[1:])
