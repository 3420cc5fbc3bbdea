"""Clients of a broker beside each other: rates, and processor seconds for a million records.

The tables of the producer path and of consumers are made here. A contender's rate is that of its best run. Its
processor seconds are the least of a run, in all threads of its process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from bench.peers.names import FLOOR, OURS
from bench.results import Figure, Table

RATE, PROCESSOR = "rate", "CPU"
Answer = dict[str, Any]


@dataclass(frozen=True)
class Target:
    """A bound for ours, in parts of what `against` has: the least rate, or the most processor seconds."""

    figure: Literal["rate", "CPU"]
    bound: float
    against: str

    def __str__(self) -> str:
        return f"{self.figure} {'>=' if self.figure == RATE else '<='} {self.bound:g}x {self.against}"


@dataclass
class Result:
    """A row, measured: the answer of each contender's process (`peers.protocol.measure`)."""

    name: str
    targets: tuple[Target, ...]
    measured: dict[str, Answer] = field(default_factory=dict)

    def rate(self, contender: str) -> float:
        """Million records a second."""
        answer = self.measured[contender]
        return float(answer["count"]) / float(answer["seconds"]) / 1e6

    def processor_seconds(self, contender: str) -> float:
        """Processor seconds for a million records."""
        answer = self.measured[contender]
        return float(answer["processor_seconds"]) / float(answer["count"]) * 1e6

    def rate_ratio(self, contender: str) -> float:
        """How many times the contender's rate ours has."""
        return self.rate(OURS) / self.rate(contender)

    def processor_ratio(self, contender: str) -> float:
        """How many times the processor seconds of ours the contender takes."""
        return self.processor_seconds(contender) / self.processor_seconds(OURS)

    def verdict(self, target: Target) -> str:
        if not self.measured.keys() >= {OURS, target.against}:
            return "not measured"
        if target.figure == PROCESSOR:
            return "hit" if 1 / self.processor_ratio(target.against) <= target.bound else "MISSED"
        if self.rate_ratio(target.against) >= target.bound:
            return "hit"
        if FLOOR in self.measured and self.rate(FLOOR) < target.bound * self.rate(target.against):
            return "MISSED, by the floor too"
        return "MISSED"


def best_of(answers: Sequence[Answer]) -> Answer:
    """One answer of several turns: the least seconds of each kind, and the most memory.

    Raises AssertionError if they are not of the same work.
    """
    first = answers[0]
    if any(
        answer["count"] != first["count"] or answer["produced"] != first["produced"] for answer in answers
    ):
        raise AssertionError(f"turns differ: {answers}")
    least = ("seconds", "median_seconds", "processor_seconds")
    peaks = {"peak_mib": max(answer["peak_mib"] for answer in answers)} if "peak_mib" in first else {}
    return {
        **first,
        **{name: min(answer[name] for answer in answers) for name in least},
        **peaks,
        "runs": sum(answer["runs"] for answer in answers),
    }


def take_turns(turns: Mapping[str, int], ask: Callable[[str, int], Answer | None]) -> dict[str, list[Answer]]:
    """Ask each contender as often as `turns` says, the order changing from turn to turn.

    ask: returns the answer of a contender in a turn, or None if it cannot do the work.
    """
    answers: dict[str, list[Answer]] = {}
    for turn in range(max(turns.values(), default=0)):
        for name in list(turns)[:: -1 if turn % 2 else 1]:
            if turn < turns[name] and (answer := ask(name, turn)) is not None:
                answers.setdefault(name, []).append(answer)
    return answers


def as_table(
    name: str, title: str, heading: str, results: Sequence[Result], contenders: Sequence[str]
) -> Table:
    """Rates and processor seconds of the contenders, and how many times as fast ours is."""
    columns = (cell for one in contenders for cell in (f"{one} M rec/s", "CPU s/M rec"))
    lines: list[tuple[str, ...]] = [(heading, *columns, "target", "verdict")]
    lines += (
        (
            result.name.removeprefix(f"{name}: "),
            *(cell for one in contenders for cell in _cells(result, one)),
            ", ".join(map(str, result.targets)),
            ", ".join(map(result.verdict, result.targets)),
        )
        for result in results
    )
    return Table(name, title, lines, left=(0, len(lines[0]) - 2, len(lines[0]) - 1))


def _cells(result: Result, name: str) -> tuple[str, str]:
    if name not in result.measured:
        return "-", "-"
    rate, seconds = result.rate(name), result.processor_seconds(name)
    rate_text, seconds_text = f"{rate:.2f}", f"{seconds:.2f}"
    if name != OURS and OURS in result.measured:
        rate_text += f" ({result.rate_ratio(name):.2f}x)"
        seconds_text += f" ({result.processor_ratio(name):.2f}x)"
    return Figure(rate, rate_text, "M rec/s"), Figure(seconds, seconds_text, "s/M rec")
