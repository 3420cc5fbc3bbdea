"""Output that commands share: tables, JSON lines, messages, progress bars, numbers in words."""

from __future__ import annotations

import json
import os
import signal
import stat
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

import click
from rich.cells import cell_len
from rich.console import Console, JustifyMethod, OverflowMethod
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.progress import Task as ProgressTask
from rich.table import Table
from rich.text import Text

from kafkafmt._util.files import naming_errors
from kafkafmt._util.visible import visible

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# The name of the file in errors.
_STANDARD_OUTPUT = "standard output"
_GAP = 2  # between the columns of a table
_LEAST_WIDTH = 8
_LAST_MILLISECOND = 253402300799999  # of the year 9999


def print_json(row: object) -> None:
    """Print an object as JSON, in one line on standard output."""
    print_text(json.dumps(row) + "\n")


def print_text(text: str) -> None:
    """Print a text on standard output as it is. Raises OSError, which names standard output."""
    with naming_errors(_STANDARD_OUTPUT):
        sys.stdout.write(text)


def echo(line: str = "") -> None:
    """Print a line on standard output at once. Raises OSError, which names standard output."""
    with naming_errors(_STANDARD_OUTPUT):
        click.echo(line)


def flush_output() -> None:
    """Flush standard output, before a message on standard error. Raises OSError, which names standard output."""
    with naming_errors(_STANDARD_OUTPUT):
        sys.stdout.flush()


def print_lines(lines: NDArray[np.uint8]) -> None:
    """Print ASCII lines on standard output, without a copy unless it is a terminal."""
    if sys.stdout.isatty():  # the lines go above a progress bar
        print_text(lines.tobytes().decode("ascii"))
        return
    flush_output()
    with naming_errors(_STANDARD_OUTPUT):
        sys.stdout.buffer.write(lines.data)


def notify(message: str) -> None:
    """Print a message for people, in one line on standard error."""
    click.echo(visible(message), err=True)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], title: str | None = None) -> None:
    """Print a table on standard output. Columns whose name ends in `#` contain numbers, and are right-aligned.

    Texts are made `visible`. If a terminal is too narrow, the widest text columns are cut, down to `_LEAST_WIDTH`, and
    the last column wraps. Numbers and times are never cut: they would be wrong. If standard output is no terminal,
    nothing is cut.
    """
    cells = [tuple(map(visible, row)) for row in rows]
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
    with naming_errors(_STANDARD_OUTPUT):
        if title is not None:
            console.print(Text(visible(title), "bold"), soft_wrap=True)
        with console.capture() as capture:
            console.print(table)
        for line in capture.get().splitlines():
            sys.stdout.write(line.rstrip() + "\n")
        sys.stdout.flush()


def _narrow(widths: list[int], yielding: Sequence[int], total: int) -> None:
    """Reduce the widest of the columns in `yielding` until all columns fit into `total` characters."""
    while sum(widths) + _GAP * (len(widths) - 1) > total:
        widest = max(yielding, key=widths.__getitem__)
        if widths[widest] <= _LEAST_WIDTH:
            return
        widths[widest] -= 1


@contextmanager
def progress_bar(*, of_records: bool = False, beside_rows: bool = False) -> Iterator[Progress]:
    """Show a progress bar with rate and time left on standard error during the block. It is erased after the block.

    It shows nothing if standard error is no terminal. of_records: count records, else bytes. beside_rows: the command
    prints rows while the bar is there. Then it is shown only if they go to a file: a program at the other end of a pipe
    may write to the same terminal.
    """
    counts = (
        (MofNCompleteColumn(), TextColumn("records"), _RecordRateColumn())
        if of_records
        else (DownloadColumn(binary_units=True), TransferSpeedColumn())
    )
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        *counts,
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
        disable=not sys.stderr.isatty() or (beside_rows and not _is_file(sys.stdout)),
        # If standard output is the terminal, too, its lines go above the bar. A file or a pipe gets them unchanged.
        redirect_stdout=sys.stdout.isatty(),
    )
    try:
        with bar:
            yield bar
    finally:
        bar.stop()  # Ctrl-C may come while it starts: the cursor must be shown again


class Terminated(KeyboardInterrupt):
    """SIGTERM has come. The command cleans up as after SIGINT."""


class _Interruption:
    """The handler of a signal that raises an exception.

    Attributes:
        was_received: whether the signal has come. It stays true if a library catches the exception.
    """

    def __init__(self, raised: type[KeyboardInterrupt]) -> None:
        self._raised = raised
        self.was_received = False

    def __call__(self, *_: object) -> NoReturn:
        self.was_received = True
        raise self._raised


@contextmanager
def interrupted_by_signals() -> Iterator[None]:
    """Raise Terminated at a SIGTERM, and KeyboardInterrupt at a SIGINT, unless the program handles them otherwise."""
    handlers = {
        signal.SIGTERM: (signal.SIG_DFL, _Interruption(Terminated)),
        signal.SIGINT: (signal.default_int_handler, _Interruption(KeyboardInterrupt)),
    }
    is_main = threading.current_thread() is threading.main_thread()
    usual = {
        number: (default, handler)
        for number, (default, handler) in handlers.items()
        if is_main and signal.getsignal(number) == default
    }
    for number, (_, handler) in usual.items():
        signal.signal(number, handler)
    try:
        yield
    finally:
        for number, (default, _) in usual.items():
            signal.signal(number, default)


@contextmanager
def ended_by_signals(end: Callable[[], None]) -> Iterator[None]:
    """Call `end` at the first SIGTERM or SIGINT during the block. A second one ends the process.

    A signal that came before, within `interrupted_by_signals`, calls `end` at once: a library caught the exception.
    """
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}

    def handle(number: int, _: object) -> None:
        end()
        signal.signal(number, signal.SIG_DFL if number == signal.SIGTERM else signal.default_int_handler)

    for number in before:
        signal.signal(number, handle)
    try:
        for number, earlier in before.items():
            if isinstance(earlier, _Interruption) and earlier.was_received:
                handle(number, None)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _RecordRateColumn(ProgressColumn):
    """The records in a second."""

    def render(self, task: ProgressTask) -> Text:
        return Text("?" if task.speed is None else f"{task.speed:,.0f}/s", style="progress.data.speed")


def _is_file(stream: TextIO) -> bool:
    """Return whether a stream goes to a file or to /dev/null, and not to a pipe or a terminal."""
    try:
        mode = os.fstat(stream.fileno()).st_mode
    except OSError:  # the stream has no descriptor
        return False
    return stat.S_ISREG(mode) or (stat.S_ISCHR(mode) and not stream.isatty())


def in_words(count: int, noun: str) -> str:
    """Return a count with its noun: `1 batch`, `2 batches`."""
    return f"{count:,} {noun if count == 1 else plural_of(noun)}"


def plural_of(noun: str) -> str:
    """Return the plural of a noun: `batches`, `entries`, `indexes`."""
    if noun.endswith("ry"):
        return f"{noun[:-1]}ies"
    return noun + ("es" if noun.endswith(("ch", "x")) else "s")


def size_in_words(size: float) -> str:
    """Return a size in bytes as text: `512 B`, `1.5 MiB`."""
    if size < 1024:
        return f"{size:.0f} B"
    for unit in ("KiB", "MiB", "GiB"):
        size /= 1024
        if size < 1024:
            return f"{size:.1f} {unit}"
    return f"{size / 1024:.1f} TiB"


def time_in_words(timestamp: int) -> str:
    """Return a timestamp in milliseconds as ISO 8601 in UTC, or as the number beyond years 1970 to 9999; `-` for -1."""
    if timestamp == -1:
        return "-"
    if not 0 <= timestamp <= _LAST_MILLISECOND:
        return str(timestamp)
    moment = datetime.fromtimestamp(timestamp // 1000, timezone.utc)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{timestamp % 1000:03d}Z"


def range_in_words(first: int | None, last: int | None) -> str:
    """Return a range of numbers as text: `5`, `5-9`, or `?-9` if an end is unknown."""
    if first == last:
        return "?" if first is None else str(first)
    return f"{'?' if first is None else first}-{'?' if last is None else last}"


def damage_in_words(damage: dict[str, Any]) -> str:
    """Return a damaged range as text: file, kind, positions, offsets, and what is wrong. damage: of `damage_row`."""
    where = f"positions {damage['position']} to {damage['end_position']}"
    lost = ""
    first, following = damage["expected_offset"], damage["next_offset"]
    if damage["last_offset"] is not None:
        lost = f", offsets {range_in_words(damage['base_offset'], damage['last_offset'])}"
    if first is not None or following is not None:
        before = "the start" if first is None else f"offset {first}"
        end = "the end" if following is None else f"offset {following}"
        lost += f", reading goes from {before} to {end}"
    return f"{damage['path']}: {damage['kind']} at {where}{lost}: {damage['message']}"
