"""Records that go on and on into a topic, and what must have come of them at a mirror's target."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from confluent_kafka import Producer

from client.cluster import Cluster
from mirror.scenarios import SECONDS

if TYPE_CHECKING:
    from typing_extensions import Self

PAUSE_SECONDS = 0.02
RECORDS_A_PAUSE = 20
MOST_QUEUED = 50_000  # of both producers; librdkafka takes 100,000 each
CODECS = ("lz4", "none")


class Load:
    """Sends numbered records to every partition of a topic until the end of this context.

    Idempotent producers, of which one compresses: what is sent arrives once and in order, whatever its broker does.
    """

    def __init__(
        self, cluster: Cluster, topic: str, partitions: int, records_a_pause: int = RECORDS_A_PAUSE
    ) -> None:
        self.topic, self.partitions = topic, partitions
        self._records_a_pause = records_a_pause
        self.sent = 0  # records, to each partition
        self._producers = [
            Producer(
                {
                    "bootstrap.servers": cluster.bootstrap,
                    "enable.idempotence": True,
                    "compression.type": codec,
                    "linger.ms": 5,
                    "reconnect.backoff.max.ms": 200,
                }
            )
            for codec in CODECS
        ]
        self._is_over = threading.Event()
        self._sending = ThreadPoolExecutor(1)

    def __enter__(self) -> Self:
        self._sent = self._sending.submit(self._run)
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._sending.shutdown()
        self._sent.result()  # raises what ended it

    def _run(self) -> None:
        while not self._is_over.wait(PAUSE_SECONDS):
            for producer in self._producers:
                producer.poll(0)
            if sum(map(len, self._producers)) > MOST_QUEUED:
                continue  # the broker is away
            for number in range(self.sent, self.sent + self._records_a_pause):
                for partition in range(
                    self.partitions
                ):  # a producer a partition, so that its order is the sent one
                    producer = self._producers[partition % len(CODECS)]
                    producer.produce(
                        self.topic, b"%d " % number + bytes(100), b"key-%d" % (number % 50), partition
                    )
            self.sent += self._records_a_pause
        for producer in self._producers:
            assert producer.flush(SECONDS) == 0


def numbers_of(values: Sequence[bytes | None]) -> list[int]:
    return [int((value or b"").split()[0]) for value in values]


def doubled(numbers: Sequence[int], sent: int) -> int:
    """How many of them came again. Each must have come, in order, but that a stretch may be repeated."""
    reached, previous = -1, -1
    for number in numbers:
        assert number in (previous + 1, reached + 1) or number <= reached, (
            f"{number} came behind {previous}, before {reached + 1}"
        )
        reached, previous = max(reached, number), number
    assert reached == sent - 1, f"{reached + 1} of {sent} came"
    return len(numbers) - sent
