"""What brokers or an endpoint have acknowledged to a producer of librdkafka."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from confluent_kafka import KafkaError, Message


@dataclass
class Acknowledged:
    """The offsets of records whose values are numbers, by partition and number, and the errors of others."""

    offsets: dict[tuple[int, int], int] = field(default_factory=dict)
    failures: list[KafkaError] = field(default_factory=list)
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def note(self, error: KafkaError | None, message: Message) -> None:
        """The callback `on_delivery` of a record."""
        with self._changed:
            if error is not None:
                self.failures.append(error)
            else:
                self.offsets[message.partition(), int(message.value() or b"")] = message.offset()
            self._changed.notify_all()

    def wait_for(self, count: int, seconds: float) -> None:
        """Wait until that many records were acknowledged, or one has failed."""
        with self._changed:
            assert self._changed.wait_for(lambda: self.failures or len(self.offsets) >= count, seconds)
