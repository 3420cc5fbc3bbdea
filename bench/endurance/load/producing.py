"""A producer that sends at a fixed rate, through librdkafka.

`python -m bench.endurance.load.producing FILE SERVER TOPIC --session SECONDS OPTIONS`; the options are in `main`.

Records are numbered for each partition. The server must give each record its number as offset. With `--release` the
producer is one of that release of Kafka. Every `--session` seconds it closes its connections, and opens new ones.
"""

from __future__ import annotations

import argparse
import threading
import time

from confluent_kafka import KafkaError, Message, Producer

from bench.endurance.load.program import LoadError, Measurements, argument_parser, run_program
from bench.endurance.load.releases import settings_of
from bench.endurance.load.values import VALUE_BYTES, Values, stamp_of

_PAUSE_SECONDS = 0.05
_FLUSH_SECONDS = 60


class Sender:
    """Sends to all partitions in turn. The partitions have the codecs in turn, each codec with its own producer."""

    def __init__(self, arguments: argparse.Namespace, measurements: Measurements) -> None:
        self._topic, self._partitions, self._rate = arguments.topic, arguments.partitions, arguments.rate
        self._measurements = measurements
        self._settings = {
            "bootstrap.servers": arguments.server,
            "acks": "all",
            "linger.ms": 50,
            **(
                settings_of(arguments.release) | {"max.in.flight": 1}
                if arguments.release
                else {"enable.idempotence": True}
            ),
        }
        self._codecs = arguments.codecs.split(",")
        self._values = Values()
        self._sent = 0
        self._failure: str | None = None

    def run(self, session_seconds: float, stopping: threading.Event) -> None:
        """Send for that time, or until the event. Raises LoadError."""
        producers = [Producer({**self._settings, "compression.type": codec}) for codec in self._codecs]
        begun, already = time.monotonic(), self._sent
        while (elapsed := time.monotonic() - begun) < session_seconds and not stopping.wait(_PAUSE_SECONDS):
            for _ in range(already + round(elapsed * self._rate) - self._sent):
                self._send(producers)
            for producer in producers:
                producer.poll(0)
            self._raise_failure()
        for producer in producers:
            if left := producer.flush(_FLUSH_SECONDS):
                raise LoadError(f"{self._topic}: {left} records were not acknowledged in {_FLUSH_SECONDS} s")
        self._raise_failure()
        self._measurements.count(connections=len(producers))

    def _send(self, producers: list[Producer]) -> None:
        number, partition = divmod(self._sent, self._partitions)
        producer = producers[partition % len(producers)]
        producer.produce(
            self._topic, self._values.value(number), partition=partition, on_delivery=self._delivered
        )
        self._sent += 1

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        number = stamp_of(message.value()).number
        if error is not None:
            self._failure = f"{self._topic}-{message.partition()}, record {number}: {error}"
        elif message.offset() != number:
            self._failure = (
                f"{self._topic}-{message.partition()}: expected offset {number}, found {message.offset()}"
            )
        self._measurements.count(records=1, bytes=VALUE_BYTES)

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise LoadError(self._failure)


def main() -> None:
    parser = argument_parser("producing", __doc__)
    parser.add_argument("topic")
    parser.add_argument("--partitions", type=int, required=True)
    parser.add_argument("--rate", type=int, required=True, help="records a second, over all partitions")
    parser.add_argument("--codecs", default="lz4")
    parser.add_argument("--release", default="")
    run_program(parser, Sender)


if __name__ == "__main__":
    main()
