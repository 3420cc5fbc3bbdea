"""The pages of the metrics port, by their paths. Every other path answers with the metrics, as before.

    pages = {"/health/live": lambda: text_page("live")}
    serve_metrics(stack, registry, address, request_timeout, pages)

A page is made in the thread of its request, so its function must not touch objects of the event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeAlias

import structlog

_log = structlog.get_logger()

_ALLOWED = "GET, HEAD, OPTIONS"


class Page(NamedTuple):
    """What a path answers with. headers: further ones, as (name, value)."""

    body: bytes
    content_type: str = "text/plain; charset=utf-8"
    status: str = "200 OK"
    headers: tuple[tuple[str, str], ...] = ()


# PEP 3333. Python's own types for it begin with 3.11.
Application: TypeAlias = Callable[[dict[str, Any], Any], Iterable[bytes]]
# Functions that return the page of a path, by the path.
Pages: TypeAlias = Mapping[str, Callable[[], Page]]


def text_page(text: str, status: str = "200 OK") -> Page:
    """Return a page of one line of text."""
    return Page(f"{text}\n".encode(), status=status)


def with_pages(pages: Pages, others: Application) -> Application:
    """Return a WSGI application that answers these paths, and leaves every other one to `others`."""

    def answer(environ: dict[str, Any], start_response: Callable[..., object]) -> Iterable[bytes]:
        make = pages.get(environ.get("PATH_INFO", ""))
        if make is None:
            return others(environ, start_response)
        method = environ["REQUEST_METHOD"]
        page = _page(make) if method in ("GET", "HEAD") else _not_allowed(method)
        headers = [
            ("Content-Type", page.content_type),
            ("Content-Length", str(len(page.body))),
            ("Cache-Control", "no-store"),
            *page.headers,
        ]
        start_response(page.status, headers)
        return [] if method == "HEAD" else [page.body]

    return answer


def _page(make: Callable[[], Page]) -> Page:
    try:
        return make()
    except Exception:
        _log.exception("a page of the metrics port failed")
        return text_page("internal error", "500 Internal Server Error")


def _not_allowed(method: str) -> Page:
    if method == "OPTIONS":
        return Page(b"", headers=(("Allow", _ALLOWED),))
    return text_page(f"expected {_ALLOWED}", "405 Method Not Allowed")._replace(
        headers=(("Allow", _ALLOWED),)
    )
