"""A real broker over the logs of tests/data, as a server that the same clients read."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from broker.broker import HOST, KAFKA_3, KAFKA_4, Broker, Kafka
from clients.tap import Tap
from data.real_logs import LOGS, NAMES
from endpoints.endpoint_process import gateway_process

CLEAN_SHUTDOWN = ".kafka_cleanshutdown"


@contextmanager
def serving_broker(folder: Path, tap: Tap, empty_topics: Iterable[str] = ()) -> Iterator[Broker]:
    """A running broker that advertises the tap, whose upstream it becomes.

    The logs are put into its folder while it is down, and it recovers them when it starts: one of them was copied
    from a running broker and ends in zeros.
    """
    with _with_logs(
        folder, {"advertised.listeners": f"PLAINTEXT://{tap.bootstrap}"}, KAFKA_3, empty_topics
    ) as broker:
        tap.upstream = (HOST, broker.port)
        yield broker


@contextmanager
def serving_gateway(folder: Path, tap: Tap, *options: str) -> Iterator[Broker]:
    """A broker of Kafka 4 with the same logs, behind a gateway that advertises the tap, whose upstream it becomes."""
    with (
        _with_logs(folder, {}, KAFKA_4) as broker,
        gateway_process(broker.bootstrap, "--advertise", tap.bootstrap, *options) as gateway,
    ):
        tap.upstream = (gateway.host, gateway.port)
        yield broker


@contextmanager
def _with_logs(
    folder: Path, config: dict[str, str], kafka: Kafka, empty_topics: Iterable[str] = ()
) -> Iterator[Broker]:
    with Broker(folder, config, kafka=kafka) as broker:
        for topic, partitions in Counter(name.rpartition("-")[0] for name in NAMES).items():
            broker.create_topic(topic, partitions)
        for topic in empty_topics:
            broker.create_topic(topic)
        broker.stop()
        for name in NAMES:
            _replace_segments(broker.log_dir / name, LOGS / name)
        (broker.log_dir / CLEAN_SHUTDOWN).unlink()
        broker.start()
        broker.wait_for_coordinator()  # which KafkaJS 1.3 asks for six times in two seconds, and then never again
        yield broker


def _replace_segments(folder: Path, source: Path) -> None:
    for old in folder.glob("0*"):
        old.unlink()
    for new in source.glob("0*"):
        shutil.copy(new, folder)
