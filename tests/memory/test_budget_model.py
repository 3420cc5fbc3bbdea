"""The budget beside a plain model of it: whatever is done, in whatever order, both count and line up alike.

Waiters stand in line here without a thread of their own, so that every order can be had.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
)

from _kafkafmt.streams.waiters import Waiter
from kafkafmt import MemoryBudget, MemoryBudgetError

TOTALS = {"total": 100, "total.a": 60, "total.b": None, "total.a.c": 30}
names = st.sampled_from(list(TOTALS))
sizes = st.integers(0, 30) | st.sampled_from([40, 60, 100, 120])


@dataclass(eq=False)
class Held:
    """A reservation or a waiter, and what the model has of it."""

    name: str
    size: int
    real: object = None


@dataclass
class Model:
    totals: dict[str, int | None] = field(default_factory=lambda: dict(TOTALS))
    held: list[Held] = field(default_factory=list)
    line: list[Held] = field(default_factory=list)
    served: list[Held] = field(default_factory=list)
    peaks: dict[str, int] = field(default_factory=lambda: dict.fromkeys(TOTALS, 0))

    def chain(self, name: str) -> list[str]:
        """A budget and its parents, upwards."""
        parts = name.split(".")
        return [".".join(parts[:end]) for end in range(len(parts), 0, -1)]

    def held_by(self, name: str) -> int:
        return sum(one.size for one in (*self.held, *self.served) if name in self.chain(one.name))

    def left(self, name: str) -> float:
        total = self.totals[name]
        return float("inf") if total is None else total - self.held_by(name)

    def claims(self, until: Held | None = None) -> set[str]:
        """What those in front lack, or wait behind others for, each the lowest."""
        claimed: set[str] = set()
        for waiter in self.line:
            if waiter is until:
                break
            chain = self.chain(waiter.name)
            lacking = [name for name in chain if name in claimed or waiter.size > self.left(name)]
            claimed.update(lacking[:1])
        return claimed

    def fits(self, name: str, size: int, claimed: set[str]) -> bool:
        return size == 0 or all(one not in claimed and size <= self.left(one) for one in self.chain(name))

    def is_possible(self, name: str, size: int) -> bool:
        return all(self.totals[one] is None or size <= self.totals[one] for one in self.chain(name))

    def settle(self) -> None:
        """Serve the line, from its front."""
        for waiter in list(self.line):
            if self.fits(waiter.name, waiter.size, self.claims(until=waiter)):
                self.line.remove(waiter)
                self.served.append(waiter)
            elif not self.is_possible(waiter.name, waiter.size):
                self.line.remove(waiter)
        self.note_peaks()

    def note_peaks(self) -> None:
        for name in self.peaks:
            self.peaks[name] = max(self.peaks[name], self.held_by(name))


class BudgetMachine(RuleBasedStateMachine):
    reservations = Bundle("reservations")
    waiters = Bundle("waiters")

    def __init__(self) -> None:
        super().__init__()
        total = MemoryBudget(TOTALS["total"])
        a, b = total.child("a", TOTALS["total.a"]), total.child("b")
        self.budgets = {budget.name: budget for budget in (total, a, b, a.child("c", TOTALS["total.a.c"]))}
        self.model = Model()

    def hold(self, name: str, size: int, real: object) -> Held:
        one = Held(name, size, real)
        self.model.held.append(one)
        self.model.note_peaks()
        return one

    @initialize(
        target=reservations, sizes=st.tuples(st.integers(0, 40), st.integers(0, 30), st.integers(0, 30))
    )
    def begin_with_some_held(self, sizes: tuple[int, ...]) -> object:
        named = zip(("total.b", "total.a.c", "total.a"), sizes, strict=True)
        return multiple(
            *[self.hold(name, size, self.budgets[name].try_reserve(size)) for name, size in named]
        )

    @rule(target=reservations, name=names, size=sizes)
    def try_reserve(self, name: str, size: int) -> object:
        real = self.budgets[name].try_reserve(size)
        assert (real is not None) == self.model.fits(name, size, self.model.claims())
        return multiple() if real is None else self.hold(name, size, real)

    @rule(target=reservations, name=names, size=sizes)
    def reserve_at_once(self, name: str, size: int) -> object:
        if self.model.fits(name, size, self.model.claims()):
            return self.hold(name, size, self.budgets[name].reserve(size, timeout=0))
        with pytest.raises(MemoryBudgetError):
            self.budgets[name].reserve(size, timeout=0)
        return multiple()

    @rule(target=waiters, name=names, size=sizes)
    @precondition(lambda self: len(self.model.line) < 4)
    def wait(self, name: str, size: int) -> Held:
        waiter = Held(name, size, Waiter(self.budgets[name], size))
        waiter.real.enlist()
        self.model.line.append(waiter)
        self.model.settle()
        return waiter

    @rule(target=reservations, waiter=consumes(waiters))
    @precondition(lambda self: self.model.served)
    def take_or_leave(self, waiter: Held) -> object:
        """What a thread does whose wait ends, for whatever reason."""
        if waiter in self.model.served:
            taken = waiter.real.take()
            waiter.real.leave(0.0)
            self.model.served.remove(waiter)
            return self.hold(waiter.name, waiter.size, taken)
        waiter.real.leave(0.0)
        if waiter in self.model.line:
            self.model.line.remove(waiter)
        self.model.settle()
        return multiple()

    @rule(waiter=consumes(waiters))
    def leave_whatever_came(self, waiter: Held) -> None:
        """An interrupted wait."""
        waiter.real.leave(0.0)
        for place in (self.model.line, self.model.served):
            if waiter in place:
                place.remove(waiter)
        self.model.settle()

    @rule(one=consumes(reservations))
    def release(self, one: Held) -> None:
        one.real.release()
        one.real.release()
        self.model.held.remove(one)
        self.model.settle()

    @rule(one=reservations, size=sizes)
    def resize(self, one: Held, size: int) -> None:
        one.real.resize(size)
        one.size = size
        self.model.note_peaks()
        self.model.settle()

    @rule(one=reservations, size=sizes)
    def try_resize(self, one: Held, size: int) -> None:
        done = one.real.try_resize(size)
        more = size - one.size
        assert done == (more <= 0 or self.model.fits(one.name, more, self.model.claims()))
        if done:
            one.size = size
            self.model.note_peaks()
            self.model.settle()

    @rule(target=reservations, one=consumes(reservations), parts=st.lists(st.integers(0, 60), max_size=3))
    def split(self, one: Held, parts: list[int]) -> object:
        reals = one.real.split(parts)
        self.model.held.remove(one)
        held = [Held(one.name, size, real) for size, real in zip(parts, reals, strict=True)]
        self.model.held += held
        self.model.note_peaks()
        self.model.settle()
        return multiple(*held)

    @rule(name=names, total=st.integers(1, 150))
    def resize_budget(self, name: str, total: int) -> None:
        self.budgets[name].resize(total)
        self.model.totals[name] = total
        self.model.settle()

    @invariant()
    def counts_are_those_of_the_model(self) -> None:
        for name, budget in self.budgets.items():
            assert budget.held_bytes == self.model.held_by(name)
            assert budget.peak_bytes == self.model.peaks[name]
            lefts = [self.model.left(one) for one in self.model.chain(name)]
            assert budget.available_bytes == min(lefts)
            assert budget.waiting == sum(name in self.model.chain(waiter.name) for waiter in self.model.line)

    @invariant()
    def line_is_that_of_the_model(self) -> None:
        for waiter in self.model.line:
            assert waiter.real.is_in_line
        for waiter in self.model.served:
            assert waiter.real.is_served
            assert not waiter.real.is_in_line

    def teardown(self) -> None:
        for one in self.model.held:
            one.real.release()
        for waiter in (*self.model.line, *self.model.served):
            waiter.real.leave(0.0)
        for budget in self.budgets.values():
            assert (budget.held_bytes, budget.waiting, budget.is_awaited) == (0, 0, False)


TestBudget = BudgetMachine.TestCase
TestBudget.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)


@pytest.mark.parametrize("walk", range(6))
def test_budget_when_used_at_random_for_long_then_it_counts_and_lines_up_as_the_model(
    walk: int, seed: int
) -> None:
    """Longer, and with fuller budgets and lines, than what hypothesis tries."""
    random = Random(seed + walk)
    machine = BudgetMachine()
    model = machine.model
    waiters: list[Held] = []
    for _ in range(2000):
        name, size = random.choice(list(TOTALS)), random.choice([0, 5, 10, 10, 20, 25, 30, 50, 110])
        step = random.random()
        if step < 0.3:
            machine.try_reserve(name, size)
        elif step < 0.4:
            machine.reserve_at_once(name, size)
        elif step < 0.55 and len(model.line) < 5:
            waiters.append(machine.wait(name, size))
        elif step < 0.6 and waiters:
            machine.leave_whatever_came(waiters.pop(random.randrange(len(waiters))))
        elif step < 0.65:
            machine.resize_budget(name, max((TOTALS[name] or 100) + random.randrange(-10, 10), 1))
        elif step < 0.85 and model.held:
            machine.release(random.choice(model.held))
        elif model.held:
            one = random.choice(model.held)
            random.choice([machine.resize, machine.try_resize])(one, random.choice([0, 5, 10, 20]))
        for waiter in [waiter for waiter in waiters if waiter not in model.line]:
            waiters.remove(waiter)
            machine.take_or_leave(waiter)
        machine.counts_are_those_of_the_model()
        machine.line_is_that_of_the_model()
    machine.teardown()
