"""The page of legacy clients in a real browser."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from endpoints import browser
from kafkafmt.server.clients_page import client_pages
from kafkafmt.server.legacy_clients import ClientList, LegacyClient
from kafkafmt.server.prometheus import metrics_server
from server.test_clients_page import HOSTILE, Cells

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(browser.installed() is None, reason="needs Chromium: tools/system.sh chromium"),
]

NOW = 1_700_000_000.0
SECONDS = 60.0
WIDTH, HEIGHT = 1000, 500
DEVICE = LegacyClient(
    "device-7",
    "10.0.0.7",
    None,
    None,
    first_seen=NOW,
    last_seen=NOW - 5,
    lowest_versions={"Fetch": 2, "Metadata": 0},
    topics=["orders"],
    fetched_bytes_converted=2048,
)
# If the browser took what a client tells for elements, scripts would run or files would load.
ATTACK = (
    f"{HOSTILE}<img src=/metrics onerror=\"document.title='owned'\"></td></table>"
    "<svg onload=\"document.title='owned'\">"
)


@pytest.fixture
def address() -> Iterator[str]:
    hostile = LegacyClient(ATTACK, "10.0.0.8", ATTACK, ATTACK, NOW, NOW - 9)
    pages = client_pages(lambda: ClientList([DEVICE, hostile], 3), lambda: NOW)
    with metrics_server(CollectorRegistry(), "127.0.0.1", 0, SECONDS, pages) as port:
        yield f"http://127.0.0.1:{port}/"


def test_page_when_shown_by_a_browser_then_has_the_clients_in_a_table(address: str) -> None:
    found = Cells(browser.rendered(address))
    assert found.cells[:8] == [
        "device-7",
        "not told",
        "10.0.0.7",
        "Fetch 2 Kafka 4: 4+, Metadata 0",
        "orders",
        "2.0 KiB",
        "0",
        "5 s ago",
    ]
    assert len(found.cells) == 16


def test_page_when_a_client_attacks_the_browser_then_it_shows_the_text(address: str) -> None:
    document = browser.rendered(address)
    found = Cells(document)
    assert found.tags.isdisjoint({"script", "img", "svg"})
    assert "onerror=" in found.cells[8]
    assert "<title>Legacy clients</title>" in document


def test_page_when_painted_by_a_browser_then_is_not_blank(address: str, tmp_path: Path) -> None:
    picture = tmp_path / "page.png"
    browser.take_picture(address, picture, WIDTH, HEIGHT)
    data = picture.read_bytes()
    assert struct.unpack_from(">II", data, 16) == (WIDTH, HEIGHT)
    assert len(data) > 5000  # a window of one colour takes less
