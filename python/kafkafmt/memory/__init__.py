"""One number of bytes for all that holds some: how it is divided, and that it is kept.

A `MemoryPlan` says what each thread may use for what, at every rebalance; a `MemoryBudget` counts what is held and has
others wait. Both follow Memory Management in Kafka Streams, "Summary".
"""

from kafkafmt.memory.budget import BudgetShare, MemoryBudget, MemoryBudgetError, Usage
from kafkafmt.memory.plan import MemoryPlan, MemoryPlanError, Task, ThreadPlan, spread

__all__ = [
    "BudgetShare",
    "MemoryBudget",
    "MemoryBudgetError",
    "MemoryPlan",
    "MemoryPlanError",
    "Task",
    "ThreadPlan",
    "Usage",
    "spread",
]
