"""What commands share in talking to people and programs: consoles, tables, JSON lines, numbers in words."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from datetime import datetime, timezone
from typing import Any

import click
from rich.console import Console
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

_LAST_MILLISECOND = 253402300799999  # of the year 9999


def print_json(row: object) -> None:
    """One object on a line of its own."""
    sys.stdout.write(json.dumps(row) + "\n")


def tell(message: str) -> None:
    """A line for people, beside whatever goes to standard output."""
    click.echo(message, err=True)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], title: str | None = None) -> None:
    """A table on standard output; numbers, in columns whose name ends in `#`, to the right.

    On a terminal it fits the width, and the last column gives way first; elsewhere lines are as long as need be.
    """
    table = Table(box=None, pad_edge=False, header_style="bold", show_edge=False)
    cells = [tuple(row) for row in rows]
    for place, name in enumerate(columns):
        is_number = name.endswith("#")
        is_last = name == columns[-1]
        table.add_column(
            name.removesuffix("#"),
            justify="right" if is_number else "left",
            no_wrap=not is_last,
            overflow="fold" if is_last else "ellipsis",
            # A number cut short is a wrong one.
            min_width=max((len(row[place]) for row in cells), default=0) if is_number else None,
        )
    for row in cells:
        table.add_row(*map(Text, row))
    console = Console(file=sys.stdout, highlight=False, soft_wrap=False)
    if not console.is_terminal:
        console = Console(
            file=sys.stdout, highlight=False, width=Console(width=1 << 16).measure(table).maximum
        )
    if title is not None:
        console.print(Text(title, "bold"), soft_wrap=True)
    with console.capture() as capture:
        console.print(table)
    for line in capture.get().splitlines():
        sys.stdout.write(line.rstrip() + "\n")


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
