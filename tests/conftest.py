"""Fixtures that several parts of the suite share: a real broker, and Kafka's own record code as the oracle.

`python -m pytest -m "not broker and not oracle"` runs what needs no Java.
"""

from __future__ import annotations

import importlib.util
import os
import random
import signal
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from broker.broker import Broker
    from oracle.kafka import KafkaOracle


SEED = "KAFKAFMT_SEED"


def lacks(*modules: str) -> bool:
    return any(importlib.util.find_spec(name) is None for name in modules)


# What needs the extras `serve` and `net` is left out where those are not installed.
collect_ignore = [
    *(["clients", "serve", "cli/test_serve.py"] if lacks("kafka", "scramp", "structlog") else []),
    *(["net"] if lacks("kafka", "confluent_kafka") else []),
]


def pytest_configure(config: pytest.Config) -> None:
    os.environ.setdefault(SEED, str(random.randrange(2**32)))  # the workers of a parallel run inherit it


def pytest_report_header() -> str:
    return f"random batches: {SEED}={os.environ[SEED]}"


@pytest.fixture(scope="session")
def seed() -> int:
    """The seed of this run's random batches: from the environment where it is set there."""
    return int(os.environ[SEED])


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A running broker, one for a worker: `.bootstrap`, `.log_dir`, `.create_topic()`, `.dump_log()`."""
    from broker.broker import Broker  # needs kafka-python, which a run without Java does not

    with Broker(tmp_path_factory.mktemp("broker")) as running:
        yield running


@pytest.fixture(scope="session")
def broker_4(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """The same of Kafka 4."""
    from broker.broker import KAFKA_4, Broker

    with Broker(tmp_path_factory.mktemp("broker-4"), kafka=KAFKA_4) as running:
        yield running


@pytest.fixture(scope="session", params=["broker", "broker_4"], ids=["3.9", "4.x"])
def any_broker(request: pytest.FixtureRequest) -> Broker:
    """The one, then the other."""
    running: Broker = request.getfixturevalue(request.param)
    return running


@pytest.fixture(scope="session")
def oracle() -> Iterator[KafkaOracle]:
    """Kafka's own record code in a JVM, one for a worker."""
    from oracle.kafka import KafkaOracle

    with KafkaOracle() as running:
        yield running


@pytest.fixture
def interrupts() -> Iterator[None]:
    """SIGINT interrupts this process and its children, though a shell in the background had it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """A test that fails with the broker shows the end of its log; one with random batches, their seed."""
    report = yield
    used = getattr(item, "funcargs", {})
    for name in ("broker", "broker_4", "any_broker", "cluster"):
        if report.failed and name in used:
            report.sections.append((f"log of {name}", used[name].log_tail()))
    if report.failed and "oracle" in used:
        report.sections.append(("random batches", f"{SEED}={os.environ[SEED]}"))
    return report
