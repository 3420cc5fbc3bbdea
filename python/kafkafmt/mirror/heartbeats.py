"""Write heartbeats as MirrorMaker 2 does, so that what monitors its clusters and hops sees those of this mirror.

KIP-382, "Internal Topics": a record of the compacted topic `heartbeats` has the aliases of two clusters as its key, and
the time as its value. Both are in the encoding of Kafka's protocol:

    key     sourceClusterAlias STRING, targetClusterAlias STRING
    value   version INT16 = 0, timestamp INT64 (ms)

STRING is an INT16 length, and UTF-8. As a pair of MirrorMaker 2's connectors does, the mirror writes (source, target)
at the target, and (target, source) at the source. It mirrors the source's topic. So a target that has recent heartbeats
in `<source alias>.heartbeats` shows that the mirror moves records.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

from kafkafmt.log.topic_configs import TopicConfig
from kafkafmt.mirror.aliases import HEARTBEATS_TOPIC
from kafkafmt.net import Producer, UndeliveredError

if TYPE_CHECKING:
    from kafkafmt.mirror.aliases import Aliases
    from kafkafmt.mirror.clusters import MirrorCluster

_VERSION = 0
_CLOSE_SECONDS = 1.0
# While a cluster is down, heartbeats are not queued for longer than this.
_DELIVERY_MS = 10_000


def heartbeat_key(source: str, target: str) -> bytes:
    """Return the key of a heartbeat.

    >>> heartbeat_key("a", "bc").hex(" ")
    '00 01 61 00 02 62 63'
    """
    return b"".join(struct.pack(">h", len(name)) + name for name in (source.encode(), target.encode()))


def heartbeat_value(timestamp_ms: int) -> bytes:
    """Return the value of a heartbeat.

    >>> heartbeat_value(1).hex(" ")
    '00 00 00 00 00 00 00 00 00 01'
    """
    return struct.pack(">hq", _VERSION, timestamp_ms)


class Heartbeats:
    """Writes a heartbeat to both clusters each time it is called. Creates the topic where it is missing."""

    def __init__(
        self,
        source: MirrorCluster,
        target: MirrorCluster,
        aliases: Aliases,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._clock = clock
        self._keys = (
            heartbeat_key(aliases.target, aliases.source),
            heartbeat_key(aliases.source, aliases.target),
        )
        self._clusters = (source, target)
        self._producers: list[Producer] = []
        for cluster in self._clusters:
            # A topic that exists needs no right to create it.
            if not cluster.has_topic(HEARTBEATS_TOPIC):
                cluster.create_topic(HEARTBEATS_TOPIC, TopicConfig(1, {"cleanup.policy": "compact"}))

    def __call__(self) -> None:
        """Send heartbeats, and do not wait for them. Raises KafkaError if a cluster cannot be reached."""
        if not self._producers:
            self._producers = _open_producers(self._clusters)
        timestamp_ms = int(self._clock() * 1000)
        for producer, key in zip(self._producers, self._keys, strict=True):
            producer.send(
                HEARTBEATS_TOPIC,
                heartbeat_value(timestamp_ms),
                key=key,
                partition=0,
                timestamp_ms=timestamp_ms,
            )

    def close(self) -> None:
        """Wait a moment for heartbeats in flight."""
        _close(self._producers)


def _open_producers(clusters: Iterable[MirrorCluster]) -> list[Producer]:
    """Open a producer for each cluster, or none: the next heartbeat then tries again."""
    producers: list[Producer] = []
    try:
        producers.extend(map(_producer, clusters))  # keeps the producers that were opened before an error
    except BaseException:
        _close(producers)
        raise
    return producers


def _producer(cluster: MirrorCluster) -> Producer:
    fixed = {
        "acks": "all",
        "metrics_enabled": False,
        "max_block_ms": _DELIVERY_MS,
        "request_timeout_ms": _DELIVERY_MS,
        "delivery_timeout_ms": 2 * _DELIVERY_MS,
    }
    return Producer(**{**cluster.config_of(Producer), **fixed})


def _close(producers: Iterable[Producer]) -> None:
    for producer in producers:
        with suppress(UndeliveredError):
            producer.close(_CLOSE_SECONDS)
