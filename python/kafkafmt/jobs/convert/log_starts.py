"""The log start offset of a partition, carried from `log-start-offset-checkpoint` of a source to that of a target."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kafkafmt._util.files import replace_file
from kafkafmt.log.checkpoints import (
    LOG_START_OFFSET_CHECKPOINT,
    LogStartOffsets,
    log_start_offsets_to_bytes,
    read_log_start_offsets,
)
from kafkafmt.log.writer import locked_folder
from kafkafmt.types import TopicPartition

if TYPE_CHECKING:
    from kafkafmt.jobs.convert.tasks import SegmentTask


def is_log_start_carried(task: SegmentTask, log_starts: LogStartOffsets) -> bool:
    """Are the records deleted in the target that are deleted in the source?"""
    if task.log_start_offset == 0:
        return True
    there = log_starts.of(task.target_folder)
    return there == 0 if task.log_start_offset is None else there >= task.log_start_offset


def carry_log_start(task: SegmentTask) -> None:
    """Have the target's checkpoint say so, at once and durably. Raises CheckpointError and OSError."""
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
