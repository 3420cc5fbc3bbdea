"""Rows into a Parquet file, which is there only once it is whole."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import click

from kafkafmt._util.directory_lock import lock_surroundings
from kafkafmt.cli import rows as row_format
from kafkafmt.cli.output import in_words, progress_bar
from kafkafmt.cli.rows import Row
from kafkafmt.cli.sources import Source

# A row group ends with whichever comes first.
_GROUP_ROWS = 100_000
_GROUP_BYTES = 16 * 1024 * 1024


def write_parquet(path: Path, rows: Iterator[tuple[Source, Iterator[Row]]], *, records: bool) -> str:
    """Write rows, file by file, to `path`; return what was done in words.

    Raises click.ClickException without pyarrow, DirectoryLockedError if a broker runs on the folder, and OSError.
    """
    with lock_surroundings(path):
        return _write_parquet(path, rows, records=records)


def _write_parquet(path: Path, rows: Iterator[tuple[Source, Iterator[Row]]], *, records: bool) -> str:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise click.ClickException("--parquet needs pyarrow: pip install 'kafkafmt[arrow]'") from None
    schema = row_format.arrow_schema(records=records)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    count = 0
    try:
        with (
            temporary.open("wb") as file,
            pq.ParquetWriter(file, schema, compression="zstd") as writer,
            progress_bar() as bar,
        ):
            task = bar.add_task(path.name, total=None)
            for group in _groups(rows):
                writer.write_table(pa.Table.from_pylist(group, schema))
                count += len(group)
                bar.update(task, completed=file.tell())
        temporary.rename(path)
    except _SourceError as error:
        raise error.cause from None
    except OSError as error:
        raise click.ClickException(f"{path}: {error.strerror or error}") from None
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()
    return f"{path}: {in_words(count, 'record' if records else 'batch')}"


def _groups(rows: Iterator[tuple[Source, Iterator[Row]]]) -> Iterator[list[Row]]:
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


class _SourceError(Exception):
    """An OSError in reading, told from those in writing."""

    def __init__(self, cause: OSError) -> None:
        super().__init__(cause)
        self.cause = cause


def _read(rows: Iterator[tuple[Source, Iterator[Row]]]) -> Iterator[Row]:
    reading: Source | None = None
    try:
        for source, found in rows:
            reading = source
            yield from found
    except OSError as error:
        if error.filename is None and reading is not None:
            error.filename = str(reading.path)
        raise _SourceError(error) from error
