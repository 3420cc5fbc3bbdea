"""One producer, from records to batches that a broker takes: counted, not timed.

Batches are built by `RecordBatchBuilder`, and split by `split_to_fit`, or as Kafka splits them, by `split_batch`.
The broker is a limit, which tells at once what it would refuse.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from _kafkafmt.wire.layout import RECORD_BATCH_OVERHEAD
from bench.splitting.traffic import Mix
from kafkafmt import Codec, MemoryRecords, RecordBatch, RecordBatchBuilder, codecs, split_batch, split_to_fit
from kafkafmt.build.estimator import RatioEstimator

TIMESTAMP = 1_700_000_000_000


@dataclass(frozen=True)
class Policy:
    """How batches are sized, and what becomes of those that are too large.

    is_measured: they are split to fit before they are sent, rather than where Kafka splits them once they were
    refused. resets: the topic's estimate begins anew then. is_live: batches that are open follow the estimate,
    which else is that of the time when a batch was begun.
    """

    name: str
    estimator: Callable[[], RatioEstimator]
    is_measured: bool = False
    resets: bool = True
    is_live: bool = False


@dataclass
class Outcome:
    """What a policy did with a mix: batches, but for the last two, which are of those sent.

    closed: those that records were appended to, not the parts of others. refused: round trips for nothing.
    split: those that were split beforehand. A topic's last batch, which its records did not fill, is not sent.
    """

    closed: int = 0
    refused: int = 0
    split: int = 0
    compressions: int = 0
    sent: int = 0
    sent_bytes: int = 0
    sent_records: int = 0

    @property
    def share_split(self) -> float:
        return (self.refused + self.split) / self.closed


class Producer:
    """Sizes, closes and splits the batches of some topics, each of one partition."""

    def __init__(self, policy: Policy, codec: Codec, mix: Mix) -> None:
        self._policy = policy
        self._codec = codec
        self._mix = mix
        self._estimator = policy.estimator()
        self._open: dict[str, RecordBatchBuilder] = {}
        self._queued: deque[tuple[str, RecordBatchBuilder]] = deque()
        self.outcome = Outcome()

    def append(self, topic: str, value: bytes) -> None:
        builder = self._open.get(topic)
        if builder is not None and not builder.has_room_for(TIMESTAMP, None, value):
            self._queued.append((topic, builder))
            self.drain(self._mix.queued)
            builder = None
        if builder is None:
            builder = self._open[topic] = self._begun(topic)
        builder.append(TIMESTAMP, None, value)

    def _begun(self, topic: str) -> RecordBatchBuilder:
        ratio = self._estimator.estimate(topic, self._codec)
        return RecordBatchBuilder(codec=self._codec, batch_size=self._mix.batch_size, estimated_ratio=ratio)

    @property
    def open_records(self) -> int:
        return sum(map(len, self._open.values()))

    def drain(self, left: int) -> None:
        """Close and send what waits, but the latest `left` batches."""
        while len(self._queued) > left:
            topic, builder = self._queued.popleft()
            self.outcome.closed += 1
            (batch,) = MemoryRecords(builder.build()).batches()
            self._observe(topic, batch.size_in_bytes, builder.size_in_bytes)
            if batch.size_in_bytes <= self._mix.limit:
                self._send(batch)
            elif self._policy.is_measured:
                self._split_to_fit(topic, batch)
            else:
                self._split_once_refused(topic, batch)

    def _observe(self, topic: str, size: int, raw_size: int) -> None:
        self._estimator.observe(topic, self._codec, (size - RECORD_BATCH_OVERHEAD) / raw_size)
        if self._policy.is_live:
            for other, builder in self._open.items():
                builder.estimated_ratio = self._estimator.estimate(other, self._codec)

    def _send(self, batch: RecordBatch) -> None:
        self.outcome.sent += 1
        self.outcome.sent_bytes += batch.size_in_bytes
        self.outcome.sent_records += batch.count

    def _split_to_fit(self, topic: str, batch: RecordBatch) -> None:
        self.outcome.split += 1
        if self._policy.resets:
            self._estimator.reset(topic)
        for part in split_to_fit(batch, self._mix.limit):
            self._send(part)

    def _split_once_refused(self, topic: str, batch: RecordBatch) -> None:
        """As Kafka's RecordAccumulator.splitAndReenqueue; a part is observed as any batch that is closed."""
        parts = deque([batch])
        while parts:
            part = parts.popleft()
            if part.size_in_bytes <= self._mix.limit:
                self._send(part)
                continue
            self.outcome.refused += 1
            if self._policy.resets:
                self._estimator.reset(topic)
            children = split_batch(part, self._mix.batch_size)
            for child in children:
                raw_size = sum(record.size_in_bytes for record in child)
                self._observe(topic, child.size_in_bytes, raw_size)
            parts.extendleft(reversed(children))


def produced(policy: Policy, mix: Mix, codec: Codec) -> Outcome:
    """What becomes of the mix's records: AssertionError unless each of them was sent once, or is in a batch still."""
    producer = Producer(policy, codec, mix)
    records = 0
    with counted_compressions() as sizes:
        for topic, value in mix.arrivals():
            producer.append(topic, value)
            records += 1
        producer.drain(0)
    sent = producer.outcome.sent_records
    if sent + producer.open_records != records:
        raise AssertionError(f"{mix.name}, {policy.name}: {sent} of {records} records sent")
    producer.outcome.compressions = len(sizes)
    return producer.outcome


@contextmanager
def counted_compressions() -> Iterator[list[int]]:
    """The sizes of all that kafkafmt compresses meanwhile: its registry of codecs is where all of it passes."""
    sizes: list[int] = []
    compress = codecs.compress

    def counting(codec: Codec | int, data: Any, **options: Any) -> bytes:
        sizes.append(len(data))
        return compress(codec, data, **options)

    codecs.compress = counting
    try:
        yield sizes
    finally:
        codecs.compress = compress
