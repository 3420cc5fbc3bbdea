"""Show which clients use old versions: the page of legacy clients at `/` of the metrics port, and `/clients.json`.

The page is one HTML document without scripts, fonts or pictures, so that it works offline. Clients choose their
names: all text is escaped, and a policy forbids the browser to load or run anything.
"""

from __future__ import annotations

import html
import json
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, timezone
from typing import Any

from kafka.protocol.api_key import ApiKey

from kafkafmt._util.sizes import KIB
from kafkafmt.server.legacy_clients import FIRST_VERSIONS, MAX_CLIENTS, ClientList, LegacyClient
from kafkafmt.server.pages import Page, Pages

_FIRST_BY_NAME = {ApiKey(key).name: first for key, first in FIRST_VERSIONS.items()}
_REFRESH_SECONDS = 30
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
_HEADERS = (("Content-Security-Policy", _POLICY), ("X-Content-Type-Options", "nosniff"))

_STYLE = """
:root { color-scheme: light dark; font: 15px/1.45 system-ui, sans-serif; }
body { margin: 2rem auto; max-width: 90rem; padding: 0 1.5rem; }
h1 { font-size: 1.5rem; margin: 0 0 .25rem; }
p { margin: .25rem 0 1rem; max-width: 60rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; }
th, td { border-bottom: 1px solid #8885; padding: .5rem .75rem; text-align: left; vertical-align: top; }
th { white-space: nowrap; }
td { max-width: 22rem; overflow-wrap: break-word; }
td.number, th.number { text-align: right; white-space: nowrap; }
ul { list-style: none; margin: 0; padding: 0; }
.old { font-weight: 600; white-space: nowrap; }
.old small { color: #b3261e; font-weight: 400; }
@media (prefers-color-scheme: dark) { .old small { color: #f2938c; } }
.none { opacity: .6; }
"""
_COLUMNS = (
    ("Client id", ""),
    ("Software", ""),
    ("Address", ""),
    ("Lowest versions used", ""),
    ("Topics", ""),
    ("Fetched, converted", "number"),
    ("Produced, converted", "number"),
    ("Last seen", ""),
)
_NOTHING = '<span class="none">unknown</span>'


def client_pages(read: Callable[[], ClientList], now: Callable[[], float] = time.time) -> Pages:
    """Return the pages of legacy clients by path. read: returns the clients, from any thread."""
    return {
        "/": lambda: Page(
            _document(_sorted(read()), now()).encode(), "text/html; charset=utf-8", headers=_HEADERS
        ),
        "/clients.json": lambda: Page(
            json.dumps(_as_json(_sorted(read())), indent=2).encode() + b"\n",
            "application/json",
            headers=_HEADERS,
        ),
    }


def _sorted(found: ClientList) -> ClientList:
    return found._replace(clients=sorted(found.clients, key=lambda client: client.last_seen, reverse=True))


def _as_json(found: ClientList) -> dict[str, Any]:
    return {"clients": [_client_as_json(client) for client in found.clients], "left_out": found.left_out}


def _client_as_json(client: LegacyClient) -> dict[str, Any]:
    return {
        "client_id": client.client_id,
        "software_name": client.software_name,
        "software_version": client.software_version,
        "address": client.address,
        "lowest_versions": dict(sorted(client.lowest_versions.items())),
        "dropped": {
            api: _FIRST_BY_NAME[api]
            for api, version in sorted(client.lowest_versions.items())
            if _is_dropped(api, version)
        },
        "topics": sorted(client.topics),
        "has_more_topics": client.has_more_topics,
        "requests": client.requests,
        "fetched_bytes_converted": client.fetched_bytes_converted,
        "produced_bytes_converted": client.produced_bytes_converted,
        "first_seen": _time(client.first_seen),
        "last_seen": _time(client.last_seen),
    }


def _is_dropped(api: str, version: int) -> bool:
    return version < _FIRST_BY_NAME.get(api, 0)


def _document(found: ClientList, now: float) -> str:
    rows = "\n".join(_row(client, now) for client in found.clients)
    heads = "".join(f'<th scope="col" class="{kind}">{name}</th>' for name, kind in _COLUMNS)
    table = (
        f'<div class="wide"><table>\n<thead><tr>{heads}</tr></thead>\n<tbody>\n{rows}\n</tbody></table></div>'
        if found.clients
        else "<p>No legacy client has been seen since the start.</p>"
    )
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="refresh" content="{_REFRESH_SECONDS}">
<title>Legacy clients</title>
<style>{_STYLE}</style>
</head>
<body>
<h1>Legacy clients</h1>
<p>{_summary(found)}</p>
{table}
<p>As of {_time(now)}. <a href="/clients.json">The same as JSON</a>. <a href="/metrics">Metrics</a>.</p>
</body>
</html>
"""


def _summary(found: ClientList) -> str:
    count = len(found.clients)
    clients = "1 client uses" if count == 1 else f"{count} clients use"
    left_out = (
        f" <strong>{found.left_out} more were left out</strong>: the list has the {MAX_CLIENTS} that were seen last."
        if found.left_out
        else ""
    )
    return f"{clients} versions of Kafka's protocol that brokers of Kafka 4 refuse (KIP-896).{left_out}"


def _row(client: LegacyClient, now: float) -> str:
    software = " ".join(filter(None, (client.software_name, client.software_version)))
    topics = [_text(topic) for topic in sorted(client.topics)]
    if client.has_more_topics:
        topics.append("and more")
    cells = (
        _text(client.client_id) if client.client_id else _NOTHING,
        _text(software) if software else _NOTHING,
        _text(client.address),
        _items(_versions(client)),
        _items(topics),
        _size(client.fetched_bytes_converted),
        _size(client.produced_bytes_converted),
        f'<time datetime="{_time(client.last_seen)}">{_ago(now - client.last_seen)}</time>',
    )
    return (
        "<tr>"
        + "".join(f'<td class="{kind}">{cell}</td>' for cell, (_, kind) in zip(cells, _COLUMNS, strict=True))
        + "</tr>"
    )


def _versions(client: LegacyClient) -> Iterator[str]:
    """Yield the versions as HTML, dropped ones first."""
    items = sorted(client.lowest_versions.items(), key=lambda one: (not _is_dropped(*one), one[0]))
    for api, version in items:
        if _is_dropped(api, version):
            yield f'<span class="old">{_text(api)} {version} <small>Kafka 4: {_FIRST_BY_NAME[api]}+</small></span>'
        else:
            yield f"{_text(api)} {version}"


def _items(items: Iterable[str]) -> str:
    return "<ul>" + "".join(f"<li>{item}</li>" for item in items) + "</ul>"


def _text(text: str) -> str:
    """Return text as HTML. Characters that are not printed, or change the order of others, are spelled out."""
    printable = (character if character.isprintable() else f"\\u{ord(character):04x}" for character in text)
    return html.escape("".join(printable))


def _size(size: int) -> str:
    if not size:
        return "0"
    value, units = float(size), iter(("B", "KiB", "MiB", "GiB", "TiB"))
    unit = next(units)
    while value >= KIB and (larger := next(units, None)):
        value, unit = value / KIB, larger
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"


def _ago(seconds: float) -> str:
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds // size:.0f} {unit} ago"
    return f"{max(seconds, 0):.0f} s ago"


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
