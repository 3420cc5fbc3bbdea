"""Metrics as Prometheus gets them."""

from __future__ import annotations

from urllib.request import urlopen

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample


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
