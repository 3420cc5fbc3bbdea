"""The errors of memory plans and budgets."""

from __future__ import annotations

from kafkafmt._util.sizes import at_least_text, size_text
from kafkafmt._util.user_errors import UserError


class MemoryPlanError(UserError, ValueError):
    """A total of `total_bytes` is too small. least_total_bytes: the least total that is enough.

    what: names what does not fit.
    """

    def __init__(self, what: str, least_total_bytes: int, total_bytes: int) -> None:
        super().__init__(what, least_total_bytes, total_bytes)
        self.what, self.least_total_bytes, self.total_bytes = what, least_total_bytes, total_bytes

    def __str__(self) -> str:
        least, found = at_least_text(self.least_total_bytes), size_text(self.total_bytes)
        return f"{self.what}: expected a total of at least {least}, found {found}"


class MemoryBudgetError(UserError, RuntimeError):
    """A reservation failed: the bytes were not free in time, the budget is closed, or its total is smaller."""
