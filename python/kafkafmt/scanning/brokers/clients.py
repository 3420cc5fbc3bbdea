"""The Kafka clients of a cluster, made by one configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from kafka import KafkaAdminClient
from kafka import TopicPartition as KafkaTopicPartition
from kafka.errors import KafkaError

from kafkafmt._util.tls_files import TlsError
from kafkafmt.client.client_config import parse_client_config
from kafkafmt.client.kafka_python import kafka_python_config
from kafkafmt.client.logged_errors import LoggedError
from kafkafmt.client.producer import Producer
from kafkafmt.client.raw_consumer import RawConsumer
from kafkafmt.client.raw_producer import RawProducer
from kafkafmt.client.tls import check_tls_files
from kafkafmt.scanning.brokers.errors import BrokerError
from kafkafmt.types import TopicPartition

_Client = TypeVar("_Client")

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

        fetch_bytes: the most bytes of a partition in a fetch, unless they are configured. Raises BrokerError if no
        broker answers.
        """
        own = {
            "enable_auto_commit": False,
            "auto_offset_reset": "none",
            "max_partition_fetch_bytes": _FETCH_BYTES if fetch_bytes is None else fetch_bytes,
            "retry_backoff_ms": _BACKOFF_MS,
        }
        return self._opened(RawConsumer, {**own, **self.config, **settings})

    def admin(self, bootstrap_ms: int | None = None) -> KafkaAdminClient:
        """Create an admin client. Raises BrokerError if no broker answers.

        bootstrap_ms: how long it waits for one, unless that is configured. None for kafka-python's own time.
        """
        own = {} if bootstrap_ms is None else {"bootstrap_timeout_ms": bootstrap_ms}
        known = {
            name: value for name, value in self.config.items() if name in KafkaAdminClient.DEFAULT_CONFIG
        }
        return self._opened(_new_admin, {**own, **known})

    def batch_producer(self) -> RawProducer:
        """Create a producer of whole batches. Raises BrokerError if no broker answers."""
        return self._opened(RawProducer, self.config)

    def producer(self) -> Producer:
        """Create a producer of records. Raises BrokerError if no broker answers."""
        return self._opened(Producer, self.config)

    def _opened(self, client: Callable[..., _Client], config: Mapping[str, Any]) -> _Client:
        try:
            check_tls_files(config)
        except TlsError as error:
            raise BrokerError(str(error)) from None
        logged = LoggedError()
        try:
            with logged.kept():
                return client(**config)
        except KafkaError as error:
            raise BrokerError(f"{self.bootstrap_servers}: {logged.explain(error, config)}") from None


def _new_admin(**config: Any) -> KafkaAdminClient:
    return KafkaAdminClient(**kafka_python_config(config))


def assign(consumer: RawConsumer, positions: Mapping[TopicPartition, int]) -> None:
    """Assign partitions to a consumer, to read from these offsets on. Clears its earlier state of them.

    So `highwater` is None for a partition until the broker has answered since.
    """
    consumer.assign([])
    consumer.assign([KafkaTopicPartition(*one) for one in positions])
    for one, offset in positions.items():
        consumer.seek(KafkaTopicPartition(*one), offset)
