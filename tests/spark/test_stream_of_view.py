"""Streams of tiered storage: the driver keeps what it has read of the store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kafkafmt.storage import locations
from log.samples import batch, put_segment
from spark.test_log_stream import Query


def test_view_when_streamed_then_is_opened_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "orders-0--_ABCDEFGHIJKLMNOPQRST"
    segment = put_segment(folder, 0, [batch(0, 5)])
    segment.rename(folder / f"0--{0:021d}.log")
    opened: list[object] = []
    open_view = locations._opened_view

    def counted(*arguments: Any) -> Any:
        opened.append(arguments)
        return open_view(*arguments)

    monkeypatch.setattr(locations, "_opened_view", counted)
    query = Query(f"tiered+{tmp_path.as_uri()}", startingOffsets="earliest")
    assert [query.offsets() for _ in range(3)] == [list(range(5)), [], []]
    assert len(opened) == 1
