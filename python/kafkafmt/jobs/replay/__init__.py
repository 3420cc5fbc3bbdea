"""The records of a log directory in another order: merged by time over partitions, within a plan's memory.

`Merge` reads and orders; a `ReplayTarget` takes what it hands out. `LogTarget` is a new log directory.
"""

from kafkafmt.jobs.replay.log_target import LogTarget
from kafkafmt.jobs.replay.merging import Merge
from kafkafmt.jobs.replay.running import Replayed, ReplayError, ReplayTarget, replay

__all__ = ["LogTarget", "Merge", "ReplayError", "ReplayTarget", "Replayed", "replay"]
