"""What surrounds the event loop of a server: the folder in which workers write their metrics."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from kafkafmt.server.running import metrics_folder


def test_folder_of_metrics_when_no_folder_is_writable_then_the_error_says_what_it_is_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    with pytest.raises(OSError, match="the metrics of workers need a writable folder for temporary files: "):
        metrics_folder().__enter__()
