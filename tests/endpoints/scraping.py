"""Metrics as Prometheus gets them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any
from urllib.request import urlopen

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

_SECONDS = 60


def scrape(address: str) -> list[Sample]:
    """All samples that are served at HOST:PORT."""
    with urlopen(f"http://{address}/metrics") as response:
        text = response.read().decode()
    return [sample for family in text_string_to_metric_families(text) for sample in family.samples]


def metric(address: str, name: str, **labels: str) -> float:
    """The sum of a metric's samples that have these labels."""
    return sum(
        sample.value
        for sample in scrape(address)
        if sample.name == name and labels.items() <= sample.labels.items()
    )


def legacy_clients(address: str) -> dict[str, Any]:
    """The list of legacy clients that is served at HOST:PORT."""
    with urlopen(f"http://{address}/clients.json") as response:
        found: dict[str, Any] = json.load(response)
    return found


def legacy_clients_when(
    address: str, is_awaited: Callable[[list[dict[str, Any]]], bool]
) -> list[dict[str, Any]]:
    """The legacy clients, once they are as awaited: an answer is counted after it was sent, and workers save theirs."""
    deadline = time.monotonic() + _SECONDS
    while not is_awaited(found := legacy_clients(address)["clients"]):
        assert time.monotonic() < deadline, found
        time.sleep(0.02)
    return found
