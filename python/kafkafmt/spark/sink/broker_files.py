"""The files of a broker that tell what is in its logs. A commit removes or changes those that would be wrong after it.

A `.snapshot` has the producers, with their open transactions, of all batches before its offset. Readers and brokers
trust it, and the `.txnindex` files of the segments before it. The sink writes neither.

After a clean stop a broker reads no batches, and otherwise only those from the recovery point of a log on. It adds the
`.txnindex` of a segment when it reads its batches. Without it, records of aborted transactions become committed ones.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path

from kafkafmt._util.files import read_regular, replace_file, sync_path
from kafkafmt.log.broker_files.cluster_files import CLEAN_SHUTDOWN
from kafkafmt.log.checkpoints import (
    RECOVERY_POINT_CHECKPOINT,
    CheckpointError,
    log_start_offsets_to_bytes,
    parse_offset_checkpoint,
)
from kafkafmt.log.segment import LOG_SUFFIX, SNAPSHOT_SUFFIX, is_segment_file_name
from kafkafmt.types import TopicPartition


def is_stale_snapshot(name: str, base_offset: int) -> bool:
    """Return whether a file of a log is a `.snapshot` that is wrong once a segment was added at an offset."""
    stem = name.removesuffix(SNAPSHOT_SUFFIX)
    return stem != name and is_segment_file_name(stem + LOG_SUFFIX) and int(stem) > base_offset


def recovery_points(folder: Path) -> dict[TopicPartition, int]:
    """Return the recovery points of a log directory. Without a file that a broker can read, it reads all batches.

    Raises OSError.
    """
    path = folder / RECOVERY_POINT_CHECKPOINT
    with contextlib.suppress(FileNotFoundError, CheckpointError):
        return parse_offset_checkpoint(read_regular(path), str(path))
    return {}


def forget_changed(folder: Path, added: Mapping[str, int], replaced: tuple[str, ...]) -> None:
    """Let the next broker on a log directory read the batches that a commit adds, durably.

    added: the lowest base offset of the new segments, by the name of a partition's folder. replaced: the folders that
    the commit replaces. Raises OSError.
    """
    for name, base_offset in added.items():
        with contextlib.suppress(FileNotFoundError):
            for path in list((folder / name).iterdir()):
                if is_stale_snapshot(path.name, base_offset):
                    path.unlink(missing_ok=True)
    changed = {TopicPartition.from_folder_name(name): at for name, at in added.items()}
    _lower_recovery_points(
        folder, {**changed, **dict.fromkeys(map(TopicPartition.from_folder_name, replaced), 0)}
    )
    with contextlib.suppress(FileNotFoundError):
        (folder / CLEAN_SHUTDOWN).unlink()
        sync_path(folder)


def _lower_recovery_points(folder: Path, changed: Mapping[TopicPartition | None, int]) -> None:
    offsets = recovery_points(folder)
    lowered = {one: min(offset, changed.get(one, offset)) for one, offset in offsets.items()}
    if lowered != offsets:
        replace_file(folder / RECOVERY_POINT_CHECKPOINT, log_start_offsets_to_bytes(lowered))
