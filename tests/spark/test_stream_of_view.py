"""Streams of tiered storage: the driver keeps what it has read of the store."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark.test_log_stream import Query
from storage.view_counting import opened_views, put_tiered_segment


def test_view_when_streamed_then_is_opened_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = opened_views(monkeypatch)
    query = Query(put_tiered_segment(tmp_path), startingOffsets="earliest")
    assert [query.offsets() for _ in range(3)] == [list(range(5)), [], []]
    assert len(opened) == 1
