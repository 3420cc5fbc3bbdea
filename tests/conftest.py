"""Fixtures that several parts of the suite share: a real broker, and Kafka's own record code as the oracle.

`python -m pytest -m "not broker and not oracle"` runs what needs no Java.
"""

from __future__ import annotations

import gc
import importlib.util
import os
import random
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

    from broker.broker import Broker, Kafka
    from oracle.kafka import KafkaOracle

SEED = "KAFKAFMT_SEED"
LOGS = Path(__file__).parent / "data" / "logs"


# Neither an example nor its generation has a time limit: on a loaded machine each may take seconds.
settings.register_profile("kafkafmt", deadline=None, suppress_health_check=[HealthCheck.too_slow])
# For tests that run in several threads at once, in which Hypothesis takes its locks for each example.
settings.register_profile("few", settings.get_profile("kafkafmt"), max_examples=10)
settings.load_profile("kafkafmt")


def lacks(*modules: str) -> bool:
    return any(importlib.util.find_spec(name) is None for name in modules)


# What needs the extras `serve` and `net` is left out where those are not installed.
collect_ignore = [
    *(
        ["clients", "gateway", "serve", "server", "cli/test_serve.py"]
        if lacks("kafka", "scramp", "structlog")
        else []
    ),
    *(["client"] if lacks("kafka", "confluent_kafka") else []),
    *(["kernels/test_fetch.py", "kernels/test_produce.py"] if lacks("kafka") else []),
]


def pytest_configure(config: pytest.Config) -> None:
    os.environ.setdefault(SEED, str(random.randrange(2**32)))  # the workers of a parallel run inherit it


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark each test that needs a broker of Kafka 3.9: it runs with `make test-all`."""
    if {"broker_3", "clusters", "reading_broker"} & set(getattr(item, "fixturenames", ())):
        item.add_marker(pytest.mark.full)


def pytest_collection_finish() -> None:
    """Keep the collector off the objects of pytest's 18,000 tests: each full collection would visit them all.

    No test may call `gc.unfreeze`.
    """
    gc.collect()
    gc.freeze()


def pytest_report_header() -> str:
    return f"random batches: {SEED}={os.environ[SEED]}"


@pytest.fixture(scope="session")
def seed() -> int:
    """The seed of this run's random batches: from the environment where it is set there."""
    return int(os.environ[SEED])


@pytest.fixture(scope="session")
def broker(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Broker:
    """A running broker of Kafka 4, one for all workers: `.bootstrap`, `.log_dir`, `.create_topic()`, `.dump_log()`."""
    from broker.broker import KAFKA_4

    return shared(pytestconfig, tmp_path_factory, KAFKA_4)


@pytest.fixture(scope="session")
def broker_3(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Broker:
    """The same of Kafka 3.9, the last line that keeps message formats v0 and v1; its tests run with `make test-all`."""
    from broker.broker import KAFKA_3

    return shared(pytestconfig, tmp_path_factory, KAFKA_3)


def shared(config: pytest.Config, tmp_path_factory: pytest.TempPathFactory, kafka: Kafka) -> Broker:
    """The broker of this run. It is stopped after all tests, since a test's teardown has too little time to wait."""
    from broker.shared import shared_broker  # needs kafka-python, which a run without Java does not

    folder = tmp_path_factory.getbasetemp()
    if hasattr(config, "workerinput"):
        folder = folder.parent  # which all workers have
    stack = ExitStack()
    config.add_cleanup(stack.close)
    return stack.enter_context(shared_broker(folder / f"broker-{kafka.name}", kafka))


@pytest.fixture(
    scope="session",
    params=[pytest.param("broker_3", id="3.9", marks=pytest.mark.full), pytest.param("broker", id="4.x")],
)
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


@pytest.fixture
def frequent_switches() -> Iterator[None]:
    """Threads take turns often, so that they meet in the middle of things."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(interval)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """A test that fails with the broker shows the end of its log; one with random batches, their seed."""
    report = yield
    used = getattr(item, "funcargs", {})
    for name in ("broker", "broker_3", "any_broker", "brokers", "cluster"):
        # Tests without a broker have fixtures of these names, too.
        if report.failed and hasattr(type(used.get(name)), "log_tail"):
            report.sections.append((f"log of {name}", used[name].log_tail()))
    if report.failed and "oracle" in used:
        report.sections.append(("random batches", f"{SEED}={os.environ[SEED]}"))
    return report


@pytest.fixture(scope="session")
def s3_options() -> Iterator[dict[str, str]]:
    """An S3 server on loopback, one for a worker: the options that reach it."""
    from file_systems import s3_server  # needs pyarrow

    with s3_server() as options:
        yield options


@pytest.fixture(scope="session")
def s3(s3_options: Mapping[str, str]) -> FileSystem:
    """That server, with the bucket BUCKET in it; others may be made."""
    from pyarrow import fs

    from file_systems import BUCKET

    store = fs.S3FileSystem(**s3_options, allow_bucket_creation=True)
    store.create_dir(BUCKET)
    return store


@pytest.fixture(scope="session")
def s3_logs(s3: FileSystem) -> str:
    """The committed logs in a bucket."""
    from pyarrow import fs

    from file_systems import BUCKET

    fs.copy_files(str(LOGS), f"{BUCKET}/my logs", destination_filesystem=s3)
    return f"s3://{BUCKET}/my logs"
