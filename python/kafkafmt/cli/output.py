"""What commands share in talking to people and programs: consoles, tables, JSON lines, numbers in words."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from datetime import datetime, timezone
from typing import Any

import click
from rich.cells import cell_len
from rich.console import Console, JustifyMethod, OverflowMethod
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.table import Table
from rich.text import Text

_GAP = 2  # between the columns of a table
_LEAST_WIDTH = 8
_LAST_MILLISECOND = 253402300799999  # of the year 9999


def print_json(row: object) -> None:
    """One object on a line of its own."""
    sys.stdout.write(json.dumps(row) + "\n")


def tell(message: str) -> None:
    """A line for people, beside whatever goes to standard output."""
    click.echo(message, err=True)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], title: str | None = None) -> None:
    """A table on standard output; numbers, in columns whose name ends in `#`, to the right.

    On a terminal that is too narrow the widest texts give way, down to `_LEAST_WIDTH`, and the last one wraps;
    numbers and times never do: cut short they would be wrong. Elsewhere lines are as long as need be.
    """
    cells = [tuple(row) for row in rows]
    names = [name.removesuffix("#") for name in columns]
    widths = [max(map(cell_len, column)) for column in zip(names, *cells, strict=True)]
    console = Console(file=sys.stdout, highlight=False)
    if console.is_terminal:
        yielding = [i for i, name in enumerate(columns) if not name.endswith("#") and "timestamp" not in name]
        _narrow(widths, yielding, console.width)
    else:
        console = Console(file=sys.stdout, highlight=False, width=sum(widths) + _GAP * len(widths))
    table = Table(box=None, pad_edge=False, header_style="bold", show_edge=False)
    for name, label, width in zip(columns, names, widths, strict=True):
        is_last = name == columns[-1]
        justify: JustifyMethod = "right" if name.endswith("#") else "left"
        overflow: OverflowMethod = "fold" if is_last else "ellipsis"
        table.add_column(label, justify=justify, width=width, no_wrap=not is_last, overflow=overflow)
    for row in cells:
        table.add_row(*map(Text, row))
    if title is not None:
        console.print(Text(title, "bold"), soft_wrap=True)
    with console.capture() as capture:
        console.print(table)
    for line in capture.get().splitlines():
        sys.stdout.write(line.rstrip() + "\n")


def _narrow(widths: list[int], yielding: Sequence[int], total: int) -> None:
    """Take from the widest of the columns in `yielding` until all fit."""
    while sum(widths) + _GAP * (len(widths) - 1) > total:
        widest = max(yielding, key=widths.__getitem__)
        if widths[widest] <= _LEAST_WIDTH:
            return
        widths[widest] -= 1


def progress_bar(*, transient: bool = True) -> Progress:
    """A bar of bytes on standard error, where that is a terminal; nothing elsewhere."""
    console = Console(stderr=True)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=transient,
        disable=not console.is_terminal,
        # Lines go above the bar where both are on the terminal; a file or a pipe gets its own untouched.
        redirect_stdout=sys.stdout.isatty(),
    )


def in_words(count: int, noun: str) -> str:
    """`1 batch`, `2 batches`."""
    plural = noun + ("es" if noun.endswith("ch") else "s")
    return f"{count:,} {noun if count == 1 else plural}"


def size_in_words(size: float) -> str:
    """`512 B`, `1.5 MiB`."""
    if size < 1024:
        return f"{size:.0f} B"
    for unit in ("KiB", "MiB", "GiB"):
        size /= 1024
        if size < 1024:
            return f"{size:.1f} {unit}"
    return f"{size / 1024:.1f} TiB"


def time_in_words(timestamp: int) -> str:
    """A timestamp of milliseconds as ISO 8601 in UTC; as the number where that has no such form."""
    if timestamp == -1:
        return "-"
    if not 0 <= timestamp <= _LAST_MILLISECOND:
        return str(timestamp)
    moment = datetime.fromtimestamp(timestamp // 1000, timezone.utc)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{timestamp % 1000:03d}Z"


def range_in_words(first: int | None, last: int | None) -> str:
    """`5`, `5-9`, `?-9`."""
    if first == last:
        return "?" if first is None else str(first)
    return f"{'?' if first is None else first}-{'?' if last is None else last}"


def damage_in_words(damage: dict[str, Any]) -> str:
    """Where a stretch of damage starts and ends, what it says of itself, and what is wrong."""
    where = f"positions {damage['position']} to {damage['end_position']}"
    lost = ""
    first, behind = damage["expected_offset"], damage["next_offset"]
    if damage["last_offset"] is not None:
        lost = f", offsets {range_in_words(damage['base_offset'], damage['last_offset'])}"
    if first is not None or behind is not None:
        before = "the start" if first is None else f"offset {first}"
        after = "the end" if behind is None else f"offset {behind}"
        lost += f", reading goes from {before} to {after}"
    return f"{damage['path']}: {damage['kind']} at {where}{lost}: {damage['message']}"
