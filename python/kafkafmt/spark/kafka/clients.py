"""The Kafka clients of the driver and the tasks, configured by the options `kafka.*`. They need the extra `net`.

Errors of kafka-python become BrokerError, so that Spark prints one line.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from kafka import KafkaAdminClient
from kafka import TopicPartition as KafkaTopicPartition
from kafka.errors import KafkaError

from kafkafmt.client.client_config import parse_client_config
from kafkafmt.errors import KafkaFormatError
from kafkafmt.net import RawConsumer, RawProducer
from kafkafmt.types import TopicPartition

# A fetch reads one partition.
_FETCH_BYTES = 4 * 1024 * 1024
# A new consumer sleeps this long twice until it knows the leaders. This is mostly the largest part of a task's time.
_BACKOFF_MS = 10
_NOT_OF_CONSUMERS = {
    "auto_offset_reset": "startingOffsets sets where to begin",
    "enable_auto_commit": "offsets are kept in the checkpoint of the query",
    "fetch_raw_bytes": "this source reads only batches",
    "group_id": "partitions are assigned, and offsets kept in the checkpoint of the query",
    "keep_control_batches": "includeControlBatches sets it",
}
_NOT_OF_PRODUCERS = {
    "compression_type": "batches go out as they are",
    "send_raw_bytes": "this sink writes only batches",
    "transactional_id": "a task that fails is run again by Spark, with another producer",
}


class BrokerError(OSError):
    """The brokers refused a request or did not answer."""


@contextlib.contextmanager
def broker_errors(bootstrap_servers: str) -> Iterator[None]:
    """Raise BrokerError for errors of kafka-python in the block, except for damaged batches."""
    try:
        yield
    except KafkaFormatError:
        raise
    except KafkaError as error:
        raise BrokerError(f"{bootstrap_servers}: {error}") from None


@dataclass(frozen=True)
class ClientOptions:
    """The options `kafka.*` as configuration of kafka-python's clients. It may contain passwords."""

    bootstrap_servers: str
    config: Mapping[str, Any] = field(repr=False)

    @classmethod
    def of_consumers(cls, given: Mapping[str, str]) -> ClientOptions:
        """Parse options of consumers. Raises ValueError, in one line, for unknown options and those fixed here."""
        return cls._of(given, RawConsumer, _NOT_OF_CONSUMERS)

    @classmethod
    def of_producers(cls, given: Mapping[str, str]) -> ClientOptions:
        """Parse options of producers. Raises the errors of `of_consumers`."""
        return cls._of(given, RawProducer, _NOT_OF_PRODUCERS)

    @classmethod
    def _of(cls, given: Mapping[str, str], client: type, refused: Mapping[str, str]) -> ClientOptions:
        config = parse_client_config(given, client)
        for name, reason in refused.items():
            if name in config:
                raise ValueError(f"option kafka.{name.replace('_', '.')}: expected it left out: {reason}")
        servers = config.get("bootstrap_servers")
        if not servers:
            raise ValueError("no option kafka.bootstrap.servers: expected host:port[,host:port]")
        return cls(servers, config)

    def consumer(self, **settings: Any) -> RawConsumer:
        """Return a new consumer without partitions. `settings` override the options."""
        own = {
            "enable_auto_commit": False,
            "auto_offset_reset": "none",
            "max_partition_fetch_bytes": _FETCH_BYTES,
            "retry_backoff_ms": _BACKOFF_MS,
        }
        return RawConsumer(**{**own, **self.config, **settings})

    def admin(self) -> KafkaAdminClient:
        """Create an admin client."""
        known = {
            name: value for name, value in self.config.items() if name in KafkaAdminClient.DEFAULT_CONFIG
        }
        return KafkaAdminClient(**known)

    def producer(self) -> RawProducer:
        """Create a producer of whole batches."""
        return RawProducer(**self.config)


def assign(consumer: RawConsumer, positions: Mapping[TopicPartition, int]) -> None:
    """Assign partitions to a consumer, to read from these offsets on. Clears its earlier state of them.

    So `highwater` is None for a partition until the broker has answered since.
    """
    consumer.assign([])
    consumer.assign([KafkaTopicPartition(*one) for one in positions])
    for one, offset in positions.items():
        consumer.seek(KafkaTopicPartition(*one), offset)
