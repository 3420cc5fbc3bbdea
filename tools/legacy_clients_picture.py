"""Make docs/_static/legacy-clients.png: the page of legacy clients, of some examples, in Chromium.

.venv/bin/python tools/legacy_clients_picture.py
"""

from __future__ import annotations

import sys
from pathlib import Path

from prometheus_client import CollectorRegistry

from kafkafmt.server.clients_page import client_pages
from kafkafmt.server.legacy_clients import ClientList, LegacyClient
from kafkafmt.server.prometheus import metrics_server

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

NOW = 1_700_000_000.0
MIB = 1024 * 1024
EXAMPLES = [
    LegacyClient(
        "netscaler-exporter",
        "10.20.0.14",
        None,
        None,
        NOW - 86400,
        NOW - 2,
        {"Metadata": 0, "Produce": 1},
        ["observability"],
        produced_bytes_converted=412 * MIB,
    ),
    LegacyClient(
        "sarama",
        "10.20.3.7",
        None,
        None,
        NOW - 86400,
        NOW - 48,
        {
            "Metadata": 0,
            "FindCoordinator": 0,
            "JoinGroup": 0,
            "OffsetFetch": 1,
            "OffsetCommit": 1,
            "Fetch": 2,
        },
        ["orders", "invoices"],
        fetched_bytes_converted=18 * 1024 * MIB,
    ),
    LegacyClient(
        "billing-2015",
        "10.20.3.9",
        "librdkafka",
        "2.3.0",
        NOW - 86400,
        NOW - 7300,
        {"ApiVersions": 3, "Metadata": 1, "ListOffsets": 0, "Fetch": 2},
        ["invoices"],
        fetched_bytes_converted=96 * MIB,
    ),
]


def main() -> None:
    """Write the picture."""
    from endpoints import browser

    path = ROOT / "docs" / "_static" / "legacy-clients.png"
    pages = client_pages(lambda: ClientList(EXAMPLES, 0), lambda: NOW)
    with metrics_server(CollectorRegistry(), "127.0.0.1", 0, 60.0, pages) as port:
        browser.take_picture(f"http://127.0.0.1:{port}/", path, 1280, 470)
    print(f"{path}: {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
