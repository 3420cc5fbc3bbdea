"""The tables and charts of `make bench-endurance`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.endurance.fleet import Command
from bench.endurance.sampling import Points
from bench.endurance.verdict import TOLERANCES, verdict
from bench.report import SECTIONS
from bench.results import Table, figure

NAME = "endurance"


def as_table(command: Command, series: Mapping[str, Points]) -> tuple[Table, bool]:
    """Return the table of a command, with its series, and whether all of them are flat."""
    lines: list[Sequence[str]] = [(command.label, "start", "end", "an hour", "tolerance", "flat")]
    is_flat = True
    for each, points in series.items():
        tolerance = TOLERANCES[each]
        found = verdict(points, tolerance)
        if found is None:
            lines.append((each, "-", "-", "-", "-", "not measured"))
            is_flat = False
            continue
        is_flat &= found.is_flat
        form, unit = tolerance.form, tolerance.unit
        after = f" {unit}" if unit else ""
        lines.append(
            (
                each,
                figure(found.start, form, unit, after),
                figure(found.end, form, unit, after),
                figure(found.slope, "+.1f", f"{unit}/h", after),
                figure(found.most, "+.1f", unit, after),
                "yes" if found.is_flat else "NO",
            )
        )
    title = f"`kafkafmt {command.label}`: {command.about}"
    return Table(command.name, title, lines, series=series), is_flat


def load_table(commands: Sequence[Command], seconds: float) -> Table:
    """What the clients of each command did."""
    lines: list[Sequence[str]] = [("load", "connections", "fetches", "records checked", "MB/s")]
    for command in commands:
        for load in command.loads:
            totals = load.totals
            lines.append(
                (
                    load.process.name,
                    f"{totals['connections']:,}",
                    f"{totals['fetches']:,}" if totals["fetches"] else "-",
                    f"{totals['records']:,}",
                    figure(totals["bytes"] / seconds / 1e6, ".2f", "MB/s"),
                )
            )
    return Table("load", "What the load programs sent and checked", lines)


def draw(tables: Sequence[Table], folder: Path) -> None:
    """Write the charts of the tables, as `make bench-report` makes them."""
    (section,) = (section for section in SECTIONS if section.name == NAME)
    for table in tables:
        if table.name in section.charts:
            path = folder / f"{NAME}-{table.name}.svg"
            path.write_text(section.charts[table.name].draw(table.as_json()))
            print(path)
