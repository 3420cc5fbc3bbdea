"""Replay the records of logs or of a cluster, merged by time over partitions, within the memory of a plan.

`Merge` reads and orders the records, `JoinedMerge` in several threads; a `ReplayTarget` gets them. `LogTarget` writes a
new log directory.
"""

from kafkafmt.jobs.replay.log_target import LogTarget
from kafkafmt.jobs.replay.merging import Merge
from kafkafmt.jobs.replay.running import Replayed, ReplayError, ReplayTarget, replay
from kafkafmt.jobs.replay.shared import SharedReplay
from kafkafmt.jobs.replay.threads import BUFFERS_AHEAD, JoinedMerge

__all__ = [
    "BUFFERS_AHEAD",
    "JoinedMerge",
    "LogTarget",
    "Merge",
    "ReplayError",
    "ReplayTarget",
    "Replayed",
    "SharedReplay",
    "replay",
]
