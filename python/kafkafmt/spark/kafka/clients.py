"""The clients that the driver and the tasks open, configured by the options `kafka.*`; needs the extra `net`.

kafka-python's errors become a BrokerError, which ends in one line as the others of this package do.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from kafka import KafkaAdminClient
from kafka import TopicPartition as KafkaTopicPartition
from kafka.errors import KafkaError

from kafkafmt.errors import KafkaFormatError
from kafkafmt.net import RawConsumer, RawProducer
from kafkafmt.net.client_config import parse_client_config
from kafkafmt.types import TopicPartition

# Fetches are of one partition each.
_FETCH_BYTES = 4 * 1024 * 1024
# What a new consumer sleeps, twice, until it knows where the leaders are: as a rule most of a task's time.
_BACKOFF_MS = 10
_NOT_OF_CONSUMERS = {
    "auto_offset_reset": "startingOffsets tells where to begin",
    "enable_auto_commit": "offsets are kept in the checkpoint of the query",
    "fetch_raw_bytes": "batches are all that there is here",
    "group_id": "partitions are assigned, and offsets kept in the checkpoint of the query",
    "keep_control_batches": "includeControlBatches says that",
}
_NOT_OF_PRODUCERS = {
    "compression_type": "batches go out as they are",
    "send_raw_bytes": "batches are all that there is here",
    "transactional_id": "a task that fails is run again by Spark, with another producer",
}


class BrokerError(OSError):
    """What the brokers refuse, or do not answer."""


@contextlib.contextmanager
def broker_errors(bootstrap_servers: str) -> Iterator[None]:
    """Raise BrokerError for what kafka-python raises, but for damaged batches."""
    try:
        yield
    except KafkaFormatError:
        raise
    except KafkaError as error:
        raise BrokerError(f"{bootstrap_servers}: {error}") from None


@dataclass(frozen=True)
class ClientOptions:
    """What the options `kafka.*` say, as kafka-python's clients take it; passwords may be in it."""

    bootstrap_servers: str
    config: Mapping[str, Any] = field(repr=False)

    @classmethod
    def of_consumers(cls, given: Mapping[str, str]) -> ClientOptions:
        """Raises ValueError, in one line, for an option that no consumer has, and one that is not to be set here."""
        return cls._of(given, RawConsumer, _NOT_OF_CONSUMERS)

    @classmethod
    def of_producers(cls, given: Mapping[str, str]) -> ClientOptions:
        """As `of_consumers`, of producers."""
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
        """A consumer to assign partitions to; `settings` go before the options."""
        own = {
            "enable_auto_commit": False,
            "auto_offset_reset": "none",
            "max_partition_fetch_bytes": _FETCH_BYTES,
            "retry_backoff_ms": _BACKOFF_MS,
        }
        return RawConsumer(**{**own, **self.config, **settings})

    def admin(self) -> KafkaAdminClient:
        known = {
            name: value for name, value in self.config.items() if name in KafkaAdminClient.DEFAULT_CONFIG
        }
        return KafkaAdminClient(**known)

    def producer(self) -> RawProducer:
        return RawProducer(**self.config)


def assign(consumer: RawConsumer, positions: Mapping[TopicPartition, int]) -> None:
    """Have the consumer read these partitions from these offsets on, with nothing known of them from before.

    `highwater` so tells of each whether the broker has answered since.
    """
    consumer.assign([])
    consumer.assign([KafkaTopicPartition(*one) for one in positions])
    for one, offset in positions.items():
        consumer.seek(KafkaTopicPartition(*one), offset)
