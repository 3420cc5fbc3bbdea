"""Fixtures that several parts of the suite share: a real broker, and Kafka's own record code as the oracle.

`python -m pytest -m "not broker and not oracle"` runs what needs no Java.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from broker.broker import Broker
    from oracle.kafka import KafkaOracle


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A running broker, one for a worker: `.bootstrap`, `.log_dir`, `.create_topic()`, `.dump_log()`."""
    from broker.broker import Broker  # needs kafka-python, which a run without Java does not

    with Broker(tmp_path_factory.mktemp("broker")) as running:
        yield running


@pytest.fixture(scope="session")
def oracle() -> Iterator[KafkaOracle]:
    """Kafka's own record code in a JVM, one for a worker."""
    from oracle.kafka import KafkaOracle

    with KafkaOracle() as running:
        yield running


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """A test that fails with the broker shows the end of the broker's log."""
    report = yield
    running = getattr(item, "funcargs", {}).get("broker")
    if report.failed and running is not None:
        report.sections.append(("broker log", running.log_tail()))
    return report
