"""What a benchmark found: tables that are printed, and written as JSON for `make bench-report`.

A result has the schema of `Run.as_json`; that is the only place that knows it.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import subprocess
import sys
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import kafkafmt
from bench import ROOT
from bench.table import aligned

RESULTS = ROOT / "bench" / "results"


class Figure(str):
    """A cell of a table with the number that it shows, which a chart needs. unit: of the number."""

    value: float
    unit: str

    def __new__(cls, value: float, text: str, unit: str) -> Figure:
        cell = super().__new__(cls, text)
        cell.value, cell.unit = value, unit
        return cell


def figure(value: float, form: str, unit: str, after: str = "") -> Figure:
    """Return a cell. form: how the number is shown; after: what is shown behind it."""
    return Figure(value, f"{value:{form}}{after}", unit)


@dataclass(frozen=True)
class Table:
    """lines: headings first; the first cell of a line names its row. A column `verdict` has hit or MISSED.

    left: the columns that are flush left. series: lines of a chart, by name, as pairs of x and y.
    """

    name: str
    title: str
    lines: Sequence[Sequence[str]]
    left: Collection[int] = (0,)
    series: Mapping[str, Sequence[tuple[float, float]]] = field(default_factory=dict)

    @property
    def text(self) -> str:
        return aligned(self.lines, self.left)

    def as_json(self) -> dict[str, Any]:
        headings, *rows = self.lines
        return {
            "name": self.name,
            "title": self.title,
            "columns": list(headings),
            "rows": [[_cell(cell) for cell in row] for row in rows],
            "series": {name: [list(point) for point in points] for name, points in self.series.items()},
        }


def _cell(cell: str) -> dict[str, Any]:
    if isinstance(cell, Figure):
        return {"text": str(cell), "value": cell.value, "unit": cell.unit}
    return {"text": cell}


@dataclass(frozen=True)
class Run:
    """One run of a benchmark. name: of its file; command: what repeats it."""

    name: str
    command: str
    tables: Sequence[Table]

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "command": self.command,
            "date": time.strftime("%Y-%m-%d"),
            "commit": _commit(),
            "version": kafkafmt.__version__,
            "machine": machine(),
            "cores": os.cpu_count(),
            "tables": [table.as_json() for table in self.tables],
        }


def _commit() -> str | None:
    """The commit of the working tree, with `+` behind it if files differ; None outside of a repository."""
    command = ["git", "describe", "--always", "--abbrev=12", "--dirty=+", "--exclude=*"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() or None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options that all benchmarks of many rows have."""
    add_json_argument(parser)
    parser.add_argument("-k", default="", metavar="TEXT", help="only the rows whose name has TEXT")


def add_json_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--json",
        type=Path,
        metavar="FILE",
        help="write tables and measurements to FILE, not to bench/results",
    )


def report(
    name: str,
    tables: Iterable[Table],
    *,
    command: str,
    path: Path | None = None,
    is_whole: bool = True,
    measured: Mapping[str, Any] | None = None,
) -> None:
    """Print the tables; write them to `path`, or to bench/results if every row was measured.

    measured: everything that was measured, for `path` alone.
    """
    run = Run(name, _with_arguments(command), list(tables))
    print(*(table.text for table in run.tables), sep="\n\n")
    print(f"\n{machine()}, kafkafmt {kafkafmt.__version__}, {time.strftime('%Y-%m-%d')}")
    if path is not None:
        write(path, {**run.as_json(), "measured": measured or {}})
    elif is_whole:
        write(RESULTS / f"{name}.json", run.as_json())


def write(path: Path, result: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")


def _with_arguments(command: str) -> str:
    if not sys.argv[1:]:
        return command
    arguments = shlex.join(sys.argv[1:])
    return f'{command} BENCH_ARGS="{arguments}"' if command.startswith("make ") else f"{command} {arguments}"


def machine() -> str:
    model = next(
        (line.split(":")[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")),
        platform.processor(),
    )
    return f"{model}, {os.cpu_count()} cores, {platform.system()}, Python {platform.python_version()}"


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines() if Path(path).exists() else []


def notes_of_load(usual: float) -> list[str]:
    """A warning if more than the benchmark itself was at work."""
    load = os.getloadavg()[0]
    if load <= usual:
        return []
    return [f"the load was {load:.1f} at the end: others were at work, and these figures are too low"]
