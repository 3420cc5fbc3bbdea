"""Copy the log start offset of a partition from the source's `log-start-offset-checkpoint` to the target's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kafkafmt._util.files import replace_file
from kafkafmt._util.locks import locked_folder
from kafkafmt.log.checkpoints import (
    LOG_START_OFFSET_CHECKPOINT,
    LogStartOffsets,
    log_start_offsets_to_bytes,
    read_log_start_offsets,
)
from kafkafmt.types import TopicPartition

if TYPE_CHECKING:
    from kafkafmt.jobs.rewrite.tasks import SegmentTask


def is_log_start_carried(task: SegmentTask, log_starts: LogStartOffsets) -> bool:
    """Whether the target has the log start offset of the task, or a higher one; for None, that it has none."""
    if task.log_start_offset == 0:
        return True
    there = log_starts.of(task.target_folder)
    return there == 0 if task.log_start_offset is None else there >= task.log_start_offset


def carry_log_start(task: SegmentTask) -> None:
    """Write the task's log start offset to the target's checkpoint, durably. Raises CheckpointError and OSError."""
    topic_partition = TopicPartition.from_folder_name(task.target_folder.name)
    if topic_partition is None or is_log_start_carried(task, LogStartOffsets()):
        return
    directory = task.target_folder.parent
    with locked_folder(directory):
        offsets = read_log_start_offsets(directory)
        if task.log_start_offset is None:
            offsets.pop(topic_partition, None)
        else:
            offsets[topic_partition] = max(offsets.get(topic_partition, 0), task.log_start_offset)
        replace_file(directory / LOG_START_OFFSET_CHECKPOINT, log_start_offsets_to_bytes(offsets))
