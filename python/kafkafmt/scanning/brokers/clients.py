"""The Kafka clients of a cluster, made by one configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kafka import KafkaAdminClient
from kafka import TopicPartition as KafkaTopicPartition

from kafkafmt.client.client_config import parse_client_config
from kafkafmt.client.raw_consumer import RawConsumer
from kafkafmt.client.raw_producer import RawProducer
from kafkafmt.types import TopicPartition

# The most bytes of a partition in a fetch.
_FETCH_BYTES = 4 * 1024 * 1024
# A new consumer sleeps this long twice until it knows the leaders. This is mostly the largest part of a task's time.
_BACKOFF_MS = 10


@dataclass(frozen=True)
class ClientConfig:
    """The configuration of kafka-python's clients of one cluster. It may contain passwords. It can be pickled."""

    bootstrap_servers: str
    config: Mapping[str, Any] = field(repr=False)

    @classmethod
    def parse(
        cls, given: Mapping[str, str], client: type, refused: Mapping[str, str], prefix: str = ""
    ) -> ClientConfig:
        """Parse the configuration of a client from text, under Kafka's names.

        client: RawConsumer or RawProducer. refused: the reason for each option that must be left out, by kafka-python's
        name. prefix: of the option names in messages.

        Raises ValueError, in one line, for unknown and refused options, and without bootstrap servers.
        """
        config = parse_client_config(given, client)
        for name, reason in refused.items():
            if name in config:
                raise ValueError(f"option {prefix}{name.replace('_', '.')}: expected it left out: {reason}")
        servers = config.get("bootstrap_servers")
        if not servers:
            raise ValueError(f"no option {prefix}bootstrap.servers: expected host:port[,host:port]")
        return cls(servers, config)

    def consumer(self, fetch_bytes: int | None = None, **settings: Any) -> RawConsumer:
        """Return a new consumer without partitions. `settings` override the configuration.

        fetch_bytes: the most bytes of a partition in a fetch, unless they are configured.
        """
        own = {
            "enable_auto_commit": False,
            "auto_offset_reset": "none",
            "max_partition_fetch_bytes": _FETCH_BYTES if fetch_bytes is None else fetch_bytes,
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
