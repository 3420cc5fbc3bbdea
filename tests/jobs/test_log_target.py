"""A log directory made of what a merge hands out: all of it, in that order, or an error that says whose it is."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

import reference as ref
from jobs.logs import make_logs, merged
from jobs.test_merging import plan_of
from kafkafmt.errors import InvalidRecordError
from kafkafmt.jobs.partition_readers import PartitionReaders, select_logs
from kafkafmt.jobs.replay import LogTarget, Merge, replay
from kafkafmt.log import LogDirectory, PartitionLogWriter
from kafkafmt.types import Codec, TopicPartition
from reference import Row


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
def test_replay_when_several_topics_interleave_then_each_log_has_its_records_in_order(
    tmp_path: Path, codec: Codec
) -> None:
    logs = {tp: log.committed for tp, log in make_logs(tmp_path / "logs", topics=("a", "b")).items()}
    with Merge(PartitionReaders(select_logs(tmp_path / "logs")), plan_of()) as merge:
        replayed = replay(merge, LogTarget(tmp_path / "out", codec=codec, batch_bytes=2000), by_time=True)
    assert replayed.records == sum(map(len, logs.values()))
    for topic in ("a", "b"):
        expected = [row for tp, row in merged({tp: rows for tp, rows in logs.items() if tp.topic == topic})]
        found = list(LogDirectory(tmp_path / "out").partition(TopicPartition(topic, 0)).records())
        assert [record.offset for record in found] == list(range(len(expected)))
        assert [(one.timestamp, one.key, one.value, tuple(one.headers)) for one in found] == [
            (row.timestamp, row.key, row.value, row.headers) for row in expected
        ]


def log_with(folder: Path, timestamps: Iterable[int]) -> None:
    with PartitionLogWriter(folder) as writer:
        writer.append(ref.batch_of([Row(n, time, None, b"v") for n, time in enumerate(timestamps)]))


def test_replay_when_a_record_cannot_be_written_then_error_names_its_offset_and_nothing_is_left(
    tmp_path: Path,
) -> None:
    log_with(tmp_path / "logs" / "t-0", [1, 3, 5, 7])
    log_with(tmp_path / "logs" / "t-1", [2, 4, -9, 6])
    with Merge(PartitionReaders(select_logs(tmp_path / "logs")), plan_of()) as merge:
        target = LogTarget(tmp_path / "out")
        with pytest.raises(InvalidRecordError, match=r"^t-1 at offset 2: the record cannot be .* found -9"):
            replay(merge, target, by_time=True)
    assert [path.name for path in tmp_path.iterdir()] == ["logs"]
