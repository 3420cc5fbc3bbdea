"""Replay the records of a log directory, merged by time over partitions, within the memory of a plan.

`Merge` reads and orders the records; a `ReplayTarget` gets them. `LogTarget` writes a new log directory.
"""

from kafkafmt.jobs.replay.log_target import LogTarget
from kafkafmt.jobs.replay.merging import Merge
from kafkafmt.jobs.replay.running import Replayed, ReplayError, ReplayTarget, replay

__all__ = ["LogTarget", "Merge", "ReplayError", "ReplayTarget", "Replayed", "replay"]
