"""A folder as target: the positions that it keeps beside its logs."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from kafkafmt.log import LogAppender
from kafkafmt.memory import MemoryBudget
from kafkafmt.mirror.options import MirrorOptions
from kafkafmt.mirror.statistics import Statistics
from kafkafmt.mirror.targets.directory import DirectoryTarget
from kafkafmt.mirror.targets.positions import read_position
from kafkafmt.types import TopicPartition

FIRST, SECOND = TopicPartition("t", 0), TopicPartition("t", 1)


def test_positions_when_logs_were_closed_then_are_kept_without_opening_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of more logs than may be open. Another writer may have one of them open meanwhile."""
    monkeypatch.setattr("kafkafmt.mirror.targets.directory.max_open_logs", lambda: 1)
    options = MirrorOptions(tmp_path / "source", tmp_path / "target")
    statistics = Statistics(MemoryBudget(1, "mirror"))
    with closing(DirectoryTarget(tmp_path / "target", statistics, options)) as target:
        target.begin(FIRST, 10)
        target.begin(SECOND, 20)
        with LogAppender(tmp_path / "target" / "t-0"):
            target.keep_positions({FIRST: 15, SECOND: 25})
    assert read_position(tmp_path / "target" / "t-0", 10) == 15
    assert read_position(tmp_path / "target" / "t-1", 20) == 25
