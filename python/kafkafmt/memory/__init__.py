"""Divide one total of bytes, and count its use.

A `MemoryPlan` calculates at every rebalance how many bytes each thread may use for each purpose. A `MemoryBudget`
counts reserved bytes, and callers wait while it has none free (Memory Management in Kafka Streams, "Summary"). The
partition buffers, caches and stores of `kafkafmt.streams` reserve bytes of a budget.
"""

from importlib import import_module
from typing import Any

from _kafkafmt.streams.reservations import Reservation
from kafkafmt.memory.budget import BudgetShare, MemoryBudget, Usage
from kafkafmt.memory.division import Part
from kafkafmt.memory.errors import MemoryBudgetError, MemoryPlanError
from kafkafmt.memory.plan import MemoryPlan, Task, ThreadPlan, spread
from kafkafmt.memory.store_kind import StoreKind

__all__ = [
    "BudgetShare",
    "MemoryBudget",
    "MemoryBudgetError",
    "MemoryPlan",
    "MemoryPlanError",
    "Part",
    "Reservation",
    "StoreKind",
    "Task",
    "ThreadPlan",
    "Usage",
    "spread",
]


def __getattr__(name: str) -> Any:
    """Return a class that moved to `kafkafmt.streams`, for programs that still import it from here."""
    if name in {"Merged", "PartitionGroup", "RecordQueue"}:
        return getattr(import_module("kafkafmt.streams"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
