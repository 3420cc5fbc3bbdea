"""The page of legacy clients, and the same as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from html.parser import HTMLParser

import pytest

from kafkafmt.server.clients_page import client_pages
from kafkafmt.server.legacy_clients import MAX_TOPICS, ClientList, LegacyClient

NOW = 1_700_000_000.0
HOSTILE = "<script>alert(1)</script>\"'&\x1b[31m\u202eevil\ud800"
CLIENT = LegacyClient(
    "device-7",
    "10.0.0.7",
    "librdkafka",
    "0.9.5",
    first_seen=NOW - 90_000,
    last_seen=NOW - 75,
    lowest_versions={"Metadata": 0, "Fetch": 2, "Produce": 1},
    topics=["orders", "invoices"],
    requests=12,
    fetched_bytes_converted=3 * 1024 * 1024,
    produced_bytes_converted=0,
)


def read(*clients: LegacyClient, left_out: int = 0) -> Callable[[], ClientList]:
    return lambda: ClientList(list(clients), left_out)


def page(read: Callable[[], ClientList]) -> str:
    return client_pages(read, lambda: NOW)["/"]().body.decode()


class Cells(HTMLParser):
    """The text of each cell, in order, and all elements."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.cells: list[str] = []
        self.tags: set[str] = set()
        self.attributes: dict[str, str | None] = {}
        self._is_cell = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes.update(attrs)
        if tag == "td":
            self.cells.append("")
            self._is_cell = True
        elif tag == "li" and self.cells[-1]:
            self.cells[-1] += ", "

    def handle_endtag(self, tag: str) -> None:
        self._is_cell = self._is_cell and tag != "td"

    def handle_data(self, data: str) -> None:
        if self._is_cell:
            self.cells[-1] += data


def test_page_when_there_are_clients_then_shows_them() -> None:
    assert Cells(page(read(CLIENT))).cells == [
        "device-7",
        "librdkafka 0.9.5",
        "10.0.0.7",
        "Fetch 2 Kafka 4: 4+, Produce 1 Kafka 4: 3+, Metadata 0",
        "invoices, orders",
        "3.0 MiB",
        "0",
        "1 min ago",
    ]


def test_json_when_there_are_clients_then_has_the_same() -> None:
    answer = client_pages(read(CLIENT, left_out=3))["/clients.json"]()
    assert answer.content_type == "application/json"
    assert json.loads(answer.body) == {
        "clients": [
            {
                "client_id": "device-7",
                "software_name": "librdkafka",
                "software_version": "0.9.5",
                "address": "10.0.0.7",
                "lowest_versions": {"Fetch": 2, "Metadata": 0, "Produce": 1},
                "dropped": {"Fetch": 4, "Produce": 3},
                "topics": ["invoices", "orders"],
                "has_more_topics": False,
                "requests": 12,
                "fetched_bytes_converted": 3 * 1024 * 1024,
                "produced_bytes_converted": 0,
                "first_seen": "2023-11-13T21:13:20Z",
                "last_seen": "2023-11-14T22:12:05Z",
            }
        ],
        "left_out": 3,
    }


def test_page_when_clients_are_hostile_then_what_they_tell_is_text() -> None:
    hostile = LegacyClient(HOSTILE, HOSTILE, HOSTILE, HOSTILE, first_seen=NOW, last_seen=NOW)
    found = Cells(page(read(hostile)))
    shown = "<script>alert(1)</script>\"'&\\u001b[31m\\u202eevil\\ud800"
    assert found.cells[:3] == [shown, f"{shown} {shown}", shown]
    assert found.tags.isdisjoint({"script", "img", "link", "iframe", "object"})


def test_json_when_clients_are_hostile_then_is_json_that_browsers_do_not_show_as_a_page() -> None:
    hostile = LegacyClient(HOSTILE, HOSTILE, None, None, first_seen=NOW, last_seen=NOW)
    answer = client_pages(read(hostile))["/clients.json"]()
    assert json.loads(answer.body)["clients"][0]["client_id"] == HOSTILE
    assert ("X-Content-Type-Options", "nosniff") in answer.headers


def test_page_when_opened_then_loads_and_runs_nothing() -> None:
    answer = client_pages(read(CLIENT))["/"]()
    policy = dict(answer.headers)["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; style-src 'unsafe-inline'")
    assert {"src", "onload", "onclick"}.isdisjoint(Cells(answer.body.decode()).attributes)
    assert b"://" not in answer.body


def test_page_when_clients_or_topics_are_left_out_then_says_so() -> None:
    many = LegacyClient(
        "many", "10.0.0.8", None, None, NOW, NOW, topics=["a"] * MAX_TOPICS, has_more_topics=True
    )
    text = page(read(many, left_out=41))
    assert "41 more were left out" in text
    assert "and more" in text
    assert "and more than" not in text
    assert text.count("unknown") == 1


def test_page_when_there_is_no_client_then_says_so() -> None:
    assert "No legacy client has been seen since the start." in page(read())


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(-1, "0 s ago"), (59, "59 s ago"), (7200, "2 h ago"), (3 * 86400 + 5, "3 d ago")],
)
def test_page_when_a_client_was_seen_long_ago_then_says_how_long(seconds: float, shown: str) -> None:
    client = LegacyClient("c", "10.0.0.8", None, None, NOW, NOW - seconds)
    assert Cells(page(read(client))).cells[-1] == shown


def test_page_when_clients_are_several_then_the_last_seen_is_first() -> None:
    clients = [LegacyClient(f"c{at}", "10.0.0.8", None, None, NOW, NOW - at) for at in (5, 1, 9)]
    cells = Cells(page(read(*clients))).cells
    assert cells[::8] == ["c1", "c5", "c9"]
