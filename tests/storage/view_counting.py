"""Tiered storage of one segment, and how often its view is opened."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kafkafmt.storage import locations
from log.samples import batch, put_segment


def put_tiered_segment(folder: Path) -> str:
    """Store offsets 0 to 4 of orders-0 as the storage of Kafka's tests does; return the URI of the view."""
    partition = folder / "orders-0--_ABCDEFGHIJKLMNOPQRST"
    put_segment(partition, 0, [batch(0, 5)]).rename(partition / f"0--{0:021d}.log")
    return f"tiered+{folder.as_uri()}"


def opened_views(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """A list that gets an entry each time a view is opened."""
    opened: list[object] = []
    open_view = locations._opened_view

    def counted(*arguments: Any) -> Any:
        opened.append(arguments)
        return open_view(*arguments)

    monkeypatch.setattr(locations, "_opened_view", counted)
    return opened
