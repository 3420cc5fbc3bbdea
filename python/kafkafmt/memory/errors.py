"""What plans and budgets refuse."""

from __future__ import annotations

from kafkafmt.sizes import at_least_text, size_text


class MemoryPlanError(ValueError):
    """A total that cannot hold what must be held at the least. least_total_bytes: the least that could."""

    def __init__(self, what: str, least_total_bytes: int, total_bytes: int) -> None:
        least = at_least_text(least_total_bytes)
        super().__init__(f"{what}: expected a total of at least {least}, found {size_text(total_bytes)}")
        self.least_total_bytes = least_total_bytes


class MemoryBudgetError(RuntimeError):
    """Bytes were not to be had: not in time, not while the budget is open, or never, as there are not so many."""
