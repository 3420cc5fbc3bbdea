"""A running broker with a server's JVM and threads, and one that has logs which were made beforehand for its own."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kafka.protocol.admin import DeleteTopicsRequest
from tests.broker.broker import KAFKA_3, Broker, Kafka

# Of kafka-server-start.sh and kafka-run-class.sh.
JVM_OPTIONS = (
    "-Xms1G",
    "-Xmx1G",
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-Djava.awt.headless=true",
)
_DELETE_VERSION, _DELETE_MS = 5, 30_000
# Where the tests' brokers are told less than Kafka's own defaults.
_CONFIG = {"log.index.size.max.bytes": 10 << 20, "num.network.threads": 3, "num.io.threads": 8}


@contextmanager
def broker_in(
    folder: Path, config: Mapping[str, Any] | None = None, kafka: Kafka = KAFKA_3
) -> Iterator[Broker]:
    """Its own folder is made in `folder`, and removed at the end. It has a server's JVM, and a server's threads."""
    folder.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(dir=folder, prefix="broker-") as own,
        Broker(Path(own), {**_CONFIG, **(config or {})}, JVM_OPTIONS, kafka) as broker,
    ):
        yield broker


@contextmanager
def broker_of(
    topics: Mapping[str, Sequence[Path]],
    folder: Path,
    config: Mapping[str, Any] | None = None,
    kafka: Kafka = KAFKA_3,
) -> Iterator[Broker]:
    """With topics whose partitions have the segments in these folders; they are linked, not copied.

    Its own folder is made in `folder`, on the same file system.
    """
    with broker_in(folder, config, kafka) as broker:
        for topic, partitions in topics.items():
            broker.create_topic(topic, len(partitions))
        broker.stop()
        for topic, partitions in topics.items():
            for number, partition in enumerate(partitions):
                _link(partition, broker.log_dir / f"{topic}-{number}")
        broker.start()
        yield broker


@contextmanager
def temporary_topic(broker: Broker, topic: str, partitions: int) -> Iterator[None]:
    """An empty topic while the context lasts, so that no run pays for the one before it."""
    broker.create_topic(topic, partitions)
    try:
        yield
    finally:
        request = DeleteTopicsRequest(topic_names=[topic], timeout_ms=_DELETE_MS)
        (deleted,) = broker.request(request, _DELETE_VERSION).responses
        if deleted.error_code:
            raise RuntimeError(f"delete {topic}: error code {deleted.error_code}")


def _link(source: Path, folder: Path) -> None:
    for file in folder.glob("0*"):
        file.unlink()
    for file in source.iterdir():
        if file.suffix == ".log":
            os.link(file, folder / file.name)
        else:  # which the broker enlarges
            shutil.copy(file, folder / file.name)
