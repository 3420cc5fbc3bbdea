"""The pages of the metrics port, beside its metrics."""

from __future__ import annotations

from collections.abc import Iterator
from http.client import HTTPConnection, HTTPResponse

import pytest
from prometheus_client import CollectorRegistry, Counter

from kafkafmt.server.pages import Page, text_page
from kafkafmt.server.prometheus import metrics_server

SECONDS = 60.0


def fail() -> Page:
    raise LookupError("a secret of the program")


@pytest.fixture
def port() -> Iterator[int]:
    registry = CollectorRegistry()
    Counter("events", "Events.", registry=registry).inc()
    pages = {
        "/": lambda: Page(b"<p>front", "text/html"),
        "/down": lambda: text_page("no", "503 No"),
        "/bad": fail,
    }
    with metrics_server(registry, "127.0.0.1", 0, SECONDS, pages) as port:
        yield port


def ask(port: int, path: str, method: str = "GET") -> tuple[HTTPResponse, bytes]:
    connection = HTTPConnection("127.0.0.1", port, timeout=SECONDS)
    connection.request(method, path)
    response = connection.getresponse()
    body = response.read()
    connection.close()
    return response, body


@pytest.mark.parametrize("path", ["/", "/?a=1"])
def test_path_with_a_page_then_answers_with_the_page(port: int, path: str) -> None:
    response, body = ask(port, path)
    assert (response.status, response.headers["Content-Type"], body) == (200, "text/html", b"<p>front")


@pytest.mark.parametrize("path", ["/metrics", "/other"])
def test_other_paths_then_answer_with_metrics(port: int, path: str) -> None:
    response, body = ask(port, path)
    assert response.status == 200
    assert b"events_total 1.0" in body


def test_page_when_it_has_another_status_then_answers_with_it(port: int) -> None:
    response, body = ask(port, "/down")
    assert (response.status, body) == (503, b"no\n")


def test_page_when_it_fails_then_says_nothing_of_why(port: int) -> None:
    response, body = ask(port, "/bad")
    assert (response.status, body) == (500, b"internal error\n")


def test_page_when_only_its_head_is_asked_for_then_has_no_body(port: int) -> None:
    response, body = ask(port, "/", "HEAD")
    assert (response.status, response.headers["Content-Length"], body) == (200, "8", b"")


def test_page_when_it_is_written_to_then_says_what_is_allowed(port: int) -> None:
    response, _ = ask(port, "/", "POST")
    assert (response.status, response.headers["Allow"]) == (405, "GET, HEAD, OPTIONS")
