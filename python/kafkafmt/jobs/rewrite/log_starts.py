"""Copy the log start offset of a partition from the source's `log-start-offset-checkpoint` to the target's."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from kafkafmt._util.files import replace_file
from kafkafmt._util.locks import locked_folder
from kafkafmt.log.checkpoints import (
    LOG_START_OFFSET_CHECKPOINT,
    LogStartOffsets,
    log_start_offsets_to_bytes,
    read_log_start_offsets,
)
from kafkafmt.storage import write_file
from kafkafmt.types import TopicPartition

if TYPE_CHECKING:
    from pathlib import Path

    from kafkafmt.jobs.rewrite.tasks import SegmentTask
    from kafkafmt.storage import RemotePath


def is_log_start_carried(task: SegmentTask, log_starts: LogStartOffsets) -> bool:
    """Whether the target has the log start offset of the task, or a higher one; for None, that it has none."""
    if task.log_start_offset == 0:
        return True
    there = log_starts.of(task.target_folder)
    return there == 0 if task.log_start_offset is None else there >= task.log_start_offset


def carry_log_start(task: SegmentTask, directory: Path) -> None:
    """Write the task's log start offset to the checkpoint of a local log directory, durably.

    Raises CheckpointError and OSError.
    """
    if _topic_partition(task) is None or is_log_start_carried(task, LogStartOffsets()):
        return
    with locked_folder(directory):
        offsets = read_log_start_offsets(directory)
        _carry([task], offsets)
        replace_file(directory / LOG_START_OFFSET_CHECKPOINT, log_start_offsets_to_bytes(offsets))


def carry_log_starts(tasks: Iterable[SegmentTask], directory: RemotePath) -> None:
    """Write the log start offsets of all tasks to the checkpoint of a log directory in a store.

    A store has no locks, so one process does this for all tasks. Raises CheckpointError and OSError.
    """
    offsets = read_log_start_offsets(directory)
    before = dict(offsets)
    _carry(tasks, offsets)
    if offsets != before:
        write_file(directory / LOG_START_OFFSET_CHECKPOINT, log_start_offsets_to_bytes(offsets))


def _carry(tasks: Iterable[SegmentTask], offsets: dict[TopicPartition, int]) -> None:
    for task in tasks:
        topic_partition = _topic_partition(task)
        if topic_partition is None or task.log_start_offset == 0:
            continue
        if task.log_start_offset is None:
            offsets.pop(topic_partition, None)
        else:
            offsets[topic_partition] = max(offsets.get(topic_partition, 0), task.log_start_offset)


def _topic_partition(task: SegmentTask) -> TopicPartition | None:
    return TopicPartition.from_folder_name(task.target_folder.name)
