"""A producer of kafkafmt: `python -m chaos.workloads.producing FOLDER NAME TOPIC SERVERS SEED KIND START`.

KIND is `idempotent` or `transactional`. It sends until SIGTERM, and writes the history `FOLDER/NAME.START.sent`. A
transaction of which the producer does not know the outcome ends the producer, and the next one gets its
transactional id.
"""

from __future__ import annotations

import random
import signal
import sys
import threading
import time
from pathlib import Path

import kafka.errors as kafka_errors

from chaos.history import Writer, value
from chaos.workloads.load import LEAST_BYTES, MOST_A_PAUSE, MOST_BYTES, PARTITIONS, PAUSE_SECONDS
from kafkafmt.net import Producer

SHARE_OF_ABORTS = 0.15
RETRY_SECONDS = 0.5
SETTINGS = {
    "acks": "all",
    "compression_type": "lz4",
    "linger_ms": 20,
    "batch_size": 1 << 16,
    "buffer_memory": 8 << 20,
    "request_timeout_ms": 10_000,
    "max_block_ms": 10_000,
    "delivery_timeout_ms": 60_000,
    "reconnect_backoff_max_ms": 1000,
    "bootstrap_timeout_ms": 60_000,
}


class Workload:
    """Sends numbered records to one topic, and keeps their history."""

    def __init__(self, folder: Path, name: str, topic: str, servers: str, seed: str, start: str) -> None:
        self._name, self._topic, self._servers = name, topic, servers.split(",")
        self._run = f"{name}.{start}"
        self._chance = random.Random(f"{seed} {self._run}")
        self._history = Writer(folder / f"{self._run}.sent")
        self._number = 0
        self._is_over = threading.Event()
        signal.signal(signal.SIGTERM, lambda *_: self._is_over.set())

    def produce(self) -> None:
        with Producer(bootstrap_servers=self._servers, **SETTINGS) as producer:
            while not self._is_over.wait(PAUSE_SECONDS):
                self._send(producer)

    def transact(self) -> None:
        while not self._is_over.is_set():
            producer = Producer(
                bootstrap_servers=self._servers,
                transactional_id=self._name,
                transaction_timeout_ms=20_000,
                **SETTINGS,
            )
            try:
                producer.init_transactions()
                while not self._is_over.wait(PAUSE_SECONDS):
                    self._transaction(producer)
            except kafka_errors.KafkaError as error:
                print(f"{time.monotonic():.2f} another producer, after {error!r}", flush=True)
                self._is_over.wait(RETRY_SECONDS)
            finally:
                producer.close()

    def _transaction(self, producer: Producer) -> None:
        producer.begin_transaction()
        first = self._number
        try:
            self._send(producer)
            is_aborted = self._chance.random() < SHARE_OF_ABORTS
            if not is_aborted:
                producer.flush()
        except kafka_errors.KafkaError as error:
            print(f"{time.monotonic():.2f} abort, after {error!r}", flush=True)
            is_aborted = True
        if is_aborted:
            producer.abort_transaction()
            self._history.write([f"x {first} {self._number}"])
            return
        self._history.write([f"t {first} {self._number}"])
        producer.commit_transaction()
        self._history.write([f"c {first} {self._number}"])

    def _send(self, producer: Producer) -> None:
        first, self._number = self._number, self._number + self._chance.randint(1, MOST_A_PAUSE)
        self._history.write([f"s {self._number}"])
        for number in range(first, self._number):
            data = value(self._run, number, self._chance.randint(LEAST_BYTES, MOST_BYTES))
            try:
                future = producer.send(self._topic, data, partition=self._chance.randrange(PARTITIONS))
            except kafka_errors.KafkaError as error:
                self._failed(number, error)
                continue
            future.add_callback(self._acknowledged, number)
            future.add_errback(self._failed, number)

    def _acknowledged(self, number: int, metadata: object) -> None:
        place = f"{metadata.partition} {metadata.offset}"  # type: ignore[attr-defined]
        self._history.write([f"a {number} {place}"])

    def _failed(self, number: int, error: BaseException) -> None:
        self._history.write([f"f {number} {type(error).__name__}"])


def main(folder: str, name: str, topic: str, servers: str, seed: str, kind: str, start: str) -> None:
    workload = Workload(Path(folder), name, topic, servers, seed, start)
    if kind == "transactional":
        workload.transact()
    else:
        workload.produce()


if __name__ == "__main__":
    main(*sys.argv[1:])
