"""One number of bytes for all that holds some: how it is divided, and that it is kept.

A `MemoryPlan` says what each thread may use for what, at every rebalance; a `MemoryBudget` counts what is held and has
others wait. What holds bytes draws on it: a `PartitionGroup` of raw batches, merged by timestamp, and caches and
RocksDB stores, in `kafkafmt.memory.cache` and `kafkafmt.memory.store`. All follow Memory Management in Kafka Streams,
"Summary".
"""

from kafkafmt.memory.budget import BudgetShare, MemoryBudget, Usage
from kafkafmt.memory.errors import MemoryBudgetError, MemoryPlanError
from kafkafmt.memory.merged import Merged
from kafkafmt.memory.partition_group import PartitionGroup
from kafkafmt.memory.plan import MemoryPlan, Task, ThreadPlan, spread
from kafkafmt.memory.record_queue import RecordQueue, Taken

__all__ = [
    "BudgetShare",
    "MemoryBudget",
    "MemoryBudgetError",
    "MemoryPlan",
    "MemoryPlanError",
    "Merged",
    "PartitionGroup",
    "RecordQueue",
    "Taken",
    "Task",
    "ThreadPlan",
    "Usage",
    "spread",
]
