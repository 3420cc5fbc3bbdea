"""The broker that all workers of a run share."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.broker import KAFKA_4
from broker.shared import shared_broker

pytestmark = [pytest.mark.broker, pytest.mark.slow]


def test_broker_when_a_worker_needs_it_after_it_was_stopped_then_another_one_is_started(
    tmp_path: Path,
) -> None:
    """The worker that started it stops it when no other one uses it, and one may begin to use it later."""
    for _ in range(2):
        with shared_broker(tmp_path / "broker", KAFKA_4) as broker:
            broker.create_topic("orders")
