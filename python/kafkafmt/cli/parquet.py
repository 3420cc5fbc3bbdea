"""Write rows to a Parquet file, which appears once it is complete."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kafkafmt._util.directory_lock import lock_surroundings
from kafkafmt._util.staging import staged_file
from kafkafmt.cli import rows as row_format
from kafkafmt.cli.output import in_words
from kafkafmt.cli.rows import Row
from kafkafmt.cli.sources import SourceFile

if TYPE_CHECKING:
    import pyarrow as pa

# A row group ends when it reaches either limit.
_GROUP_ROWS = 100_000
_GROUP_BYTES = 16 * 1024 * 1024


def write_parquet(path: Path, rows: Iterator[tuple[SourceFile, Iterator[Row]]], *, records: bool) -> str:
    """Write the rows of all files to `path`, and return a message with the number of rows.

    records: whether the rows are records, else batches. Raises as `write_groups`, and OSError for errors in reading.
    """
    noun = "record" if records else "batch"
    return write_groups(path, lambda: row_format.arrow_schema(records=records), _groups(rows), noun)


def write_groups(
    path: Path, schema_of: Callable[[], pa.Schema], groups: Iterable[list[Row]], noun: str
) -> str:
    """Write groups of rows to `path`, and return a message with the number of rows.

    schema_of: makes the schema, with pyarrow. groups: raise `SourceError` for an OSError in reading; its cause is
    raised. noun: what a row is. Raises click.ClickException if pyarrow is missing or `path` cannot be written, and
    DirectoryLockedError if a broker runs on the folder.
    """
    with lock_surroundings(path):
        return _write_groups(path, schema_of, groups, noun)


def _write_groups(
    path: Path, schema_of: Callable[[], pa.Schema], groups: Iterable[list[Row]], noun: str
) -> str:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise click.ClickException("--parquet needs pyarrow: pip install 'kafkafmt[arrow]'") from None
    schema = schema_of()
    count = 0
    try:
        with (
            staged_file(path) as file,
            pq.ParquetWriter(file, schema, compression="zstd") as writer,
        ):
            for group in groups:
                writer.write_table(pa.Table.from_pylist(group, schema))
                count += len(group)
    except SourceError as error:
        raise error.cause from None
    except OSError as error:
        raise click.ClickException(f"{path}: {error.strerror or error}") from None
    return f"{path}: {in_words(count, noun)}"


def _groups(rows: Iterator[tuple[SourceFile, Iterator[Row]]]) -> Iterator[list[Row]]:
    group: list[Row] = []
    size = 0
    for row in _read(rows):
        group.append(row_format.to_arrow(row))
        size += len(row.get("key") or b"") + len(row.get("value") or b"")
        if len(group) == _GROUP_ROWS or size >= _GROUP_BYTES:
            yield group
            group, size = [], 0
    if group:
        yield group


class SourceError(Exception):
    """Wraps an OSError in reading, to distinguish it from errors in writing."""

    def __init__(self, cause: OSError) -> None:
        super().__init__(cause)
        self.cause = cause


def _read(rows: Iterator[tuple[SourceFile, Iterator[Row]]]) -> Iterator[Row]:
    reading: SourceFile | None = None
    try:
        for source, found in rows:
            reading = source
            yield from found
    except OSError as error:
        if error.filename is None and reading is not None:
            error.filename = str(reading.path)
        raise SourceError(error) from error
