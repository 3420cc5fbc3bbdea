"""Print the rows of a command as a table, as JSON lines, or into a Parquet file. Their fields are `columns.fields`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import click

from kafkafmt.cli.options import Decorator, json_option, options
from kafkafmt.cli.output import echo, notify, plural_of, print_json, print_table, time_in_words
from kafkafmt.cli.parquet import SourceError, write_groups
from kafkafmt.cli.rows import Row, text_or_base64
from kafkafmt.cli.values import FILE
from kafkafmt.columns.fields import Field, arrow_row, arrow_schema

_TABLE_ROWS = 500  # further rows are printed as further tables
_GROUP_ROWS = 100_000
_SHOWN = 60  # characters of a cell


def row_output_options() -> Decorator:
    """Return a decorator that adds `--json`, `--parquet` and `--force`. `RowOutput.of` checks their values."""
    return options(
        json_option("Print JSON lines: one object for each row."),
        click.option("--parquet", type=FILE, help="Write the rows to FILE as Parquet."),
        click.option("--force", is_flag=True, help="With --parquet: replace FILE."),
    )


@dataclass(frozen=True)
class RowOutput:
    """Where the rows of a command go: a table for people, or `as_json`, or the file `parquet`."""

    as_json: bool
    parquet: Path | None

    @classmethod
    def of(cls, as_json: bool, parquet: Path | None, force: bool) -> RowOutput:
        """Check the options of `row_output_options`. Raises click's errors."""
        if force and parquet is None:
            raise click.UsageError("--force is for --parquet")
        if as_json and parquet is not None:
            raise click.UsageError("--json and --parquet: choose one")
        if parquet is not None and not force and os.path.lexists(parquet):
            raise click.ClickException(f"{parquet}: already exists: --force replaces it")
        return cls(as_json, parquet)

    @property
    def is_table(self) -> bool:
        """Whether the rows are printed as a table."""
        return not self.as_json and self.parquet is None

    def write(
        self,
        fields: Sequence[Field],
        rows: Iterable[Mapping[str, Any]],
        *,
        noun: str,
        title: str | None = None,
    ) -> None:
        """Print or write all rows. noun: what a row is, for messages. title: the line above a table.

        In a table, fields that are null or empty in all rows are left out, and fields named `*_ms` or `*timestamp` are
        times. Raises as `cli.parquet.write_groups`.
        """
        if self.as_json:
            for row in rows:
                print_json(json_row(fields, row))
        elif self.parquet is not None:
            notify(write_groups(self.parquet, lambda: arrow_schema(fields), _groups(fields, rows), noun))
        else:
            _print_tables(fields, iter(rows), noun, title)


def json_row(fields: Sequence[Field], row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row for JSON. Bytes are text, or `<name>_base64` if they are not UTF-8."""
    found: dict[str, Any] = {}
    for name, kind in fields:
        if kind == "binary":
            found.update(text_or_base64(name, row[name]))
        else:
            found[name] = row[name]
    return found


def _print_tables(
    fields: Sequence[Field], rows: Iterator[Mapping[str, Any]], noun: str, title: str | None
) -> None:
    is_empty = True
    while part := list(islice(rows, _TABLE_ROWS)):
        if not is_empty:
            echo()
        is_empty = False
        shown = [field for field in fields if any(row[field.name] not in (None, [], {}, "") for row in part)]
        columns = [_heading(field) for field in shown]
        print_table(
            columns, [[_cell(field, row[field.name]) for field in shown] for row in part], title=title
        )
    if is_empty:
        notify(f"no {plural_of(noun)}")


def _heading(field: Field) -> str:
    name = field.name.replace("_", " ")
    if _is_time(field):
        name = name.removesuffix(" ms")
        return name if "timestamp" in name else f"{name} timestamp"
    return f"{name}#" if field.type in ("float64", "int32", "int64") else name


def _is_time(field: Field) -> bool:
    return field.type == "int64" and field.name.endswith(("_timestamp_ms", "timestamp"))


def _cell(field: Field, value: Any) -> str:
    if value is None:
        return "-"
    if _is_time(field):
        return time_in_words(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return _short(", ".join(map(str, value)))
    if isinstance(value, dict):
        return _short(", ".join(f"{name}={one}" for name, one in value.items()))
    if isinstance(value, bytes):
        text = value.decode("utf-8", "replace")
        return _short(text if text.isprintable() else f"0x{value.hex()}")
    return str(value)


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"


def _groups(fields: Sequence[Field], rows: Iterable[Mapping[str, Any]]) -> Iterator[list[Row]]:
    remaining = iter(rows)
    try:
        while group := [arrow_row(fields, row) for row in islice(remaining, _GROUP_ROWS)]:
            yield group
    except OSError as error:
        raise SourceError(error) from error
