"""`kafkafmt inspect` of files that a broker keeps beside segments: their rows, and the checks of indexes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from kafkafmt.cli.options import Decorator, options
from kafkafmt.cli.output import echo, in_words, notify, plural_of
from kafkafmt.cli.row_output import RowOutput
from kafkafmt.cli.values import NEEDS_PYARROW
from kafkafmt.columns.fields import Field
from kafkafmt.errors import KafkaFormatError
from kafkafmt.log.broker_files.errors import BrokerFileError
from kafkafmt.log.broker_files.index_verification import (
    CHECKED_SUFFIXES,
    IndexVerdict,
    check_index_sanity,
    verify_index,
)
from kafkafmt.log.broker_files.kinds import BrokerFileKind, is_like_known_name, kind_of
from kafkafmt.log.listing import Listing
from kafkafmt.storage import StoragePath, Storages
from kafkafmt.storage.locations import without_secrets

if TYPE_CHECKING:
    from kafkafmt.cli.rows import Row

_PATH = Field("path", "string")
_VERDICT_FIELDS = (
    _PATH,
    Field("check", "string"),
    Field("entries", "int32"),
    Field("result", "string"),
    Field("findings", "list<string>"),
)
_SANITY, _VERIFY = "index-sanity-check", "verify-index-only"
_CHECKS: dict[str, Callable[[StoragePath], IndexVerdict]] = {
    _SANITY: check_index_sanity,
    _VERIFY: verify_index,
}


class BrokerFile(NamedTuple):
    """A file that a broker keeps beside segments, and what its name says it is."""

    path: StoragePath
    kind: BrokerFileKind


def index_check_options() -> Decorator:
    """Return a decorator that adds the checks of indexes, with the names that kafka-dump-log has for them.

    The command gets the parameter `index_check`: the name of the check, or None. Two checks are refused.
    """
    return options(
        click.option(
            f"--{_SANITY}",
            is_flag=True,
            expose_value=False,
            callback=_choose_check,
            help="Check .index and .timeindex files as a broker does before it trusts them.",
        ),
        click.option(
            f"--{_VERIFY}",
            is_flag=True,
            expose_value=False,
            callback=_choose_check,
            help="Compare .index and .timeindex files with their segments.",
        ),
    )


def _choose_check(ctx: click.Context, param: click.Parameter, is_chosen: bool) -> None:
    chosen = ctx.params.setdefault("index_check", None)
    if is_chosen:
        if chosen is not None:
            raise click.UsageError(f"--{_SANITY} and --{_VERIFY}: choose one")
        ctx.params["index_check"] = param.opts[0].removeprefix("--")


def find_broker_files(paths: Sequence[str]) -> list[BrokerFile]:
    """Return the files beside segments that paths name; none if the paths are of segments and folders.

    A pattern is of files beside segments if it matches such files, and no segment. Raises click.UsageError for paths of
    both kinds, and OSError.
    """
    storages, listing = Storages(), Listing(with_others=True)
    found: list[BrokerFile] = []
    others: list[str] = []
    for name in paths:
        matches = _matches(name, storages, listing)
        found += matches
        if not matches:
            others.append(name)
    if found and others:
        raise click.UsageError(
            f"{found[0].path} is beside segments, and {without_secrets(others[0])} is not: inspect them separately"
        )
    return list(dict.fromkeys(found))


def _matches(name: str, storages: Storages, listing: Listing) -> list[BrokerFile]:
    path = _located(name, storages)
    if path is None or not is_like_known_name(path.name) or path.is_dir():
        return []
    segments, others = listing.find(path)
    if segments:
        return []
    kinds = ((other, kind_of(other.name)) for other in others)
    return [BrokerFile(other, kind) for other, kind in kinds if kind is not None]


def inspect_broker_files(files: Sequence[BrokerFile], output: RowOutput) -> int:
    """Print or write the rows of files, report malformed ones, and return the exit status.

    Raises click.UsageError for files of several kinds that shall be written into one Parquet file.
    """
    damaged: list[StoragePath] = []

    def rows(some: Sequence[BrokerFile]) -> Iterator[Row]:
        for file in some:
            try:
                for row in file.kind.rows(file.path):
                    yield {_PATH.name: str(file.path), **row}
            except BrokerFileError as error:
                damaged.append(file.path)
                notify(f"damage: {error}")

    if output.parquet is not None and len({file.kind.names for file in files}) > 1:
        raise click.UsageError("--parquet: expected files of one kind, whose rows have the same fields")
    if not output.is_table:
        for kind, some in groupby(files, lambda file: file.kind):
            output.write((_PATH, *kind.fields), rows(list(some)), noun=kind.noun)
        return 1 if damaged else 0
    is_first = True
    for file in files:
        found = list(rows([file]))
        if file.path in damaged:
            continue
        if not found:
            notify(f"{file.path}: no {plural_of(file.kind.noun)}")
            continue
        if not is_first:
            echo()
        is_first = False
        output.write(file.kind.fields, found, noun=file.kind.noun, title=str(file.path))
    return 1 if damaged else 0


def check_indexes(files: Sequence[BrokerFile], check: str, output: RowOutput) -> int:
    """Check index files, print or write a row for each, and return the exit status.

    check: the name of an option of `index_check_options`. Raises click.UsageError for a file that is no such index.
    """
    for file in files:
        if not file.path.name.endswith(CHECKED_SUFFIXES):
            raise click.UsageError(
                f"--{check} is for {' and '.join(CHECKED_SUFFIXES)} files, not {file.path}"
            )
    verdicts = [_verdict(file.path, check) for file in files]
    output.write(_VERDICT_FIELDS[:-1] if output.is_table else _VERDICT_FIELDS, verdicts, noun="index")
    wrong = 0
    for verdict in verdicts:
        wrong += len(verdict["findings"])
        for finding in verdict["findings"] if output.is_table else ():
            notify(f"finding: {verdict['path']}: {finding}")
    if output.is_table:
        notify(f"{in_words(len(files), 'file')}: {in_words(wrong, 'finding')}")
    return 1 if wrong else 0


def _verdict(path: StoragePath, check: str) -> dict[str, Any]:
    try:
        entries, findings = _CHECKS[check](path)
    except KafkaFormatError as error:
        entries, findings = 0, [str(error.message)]
    result = "failed" if findings else "passed" if entries else "empty"
    return dict(
        zip((one.name for one in _VERDICT_FIELDS), (str(path), check, entries, result, findings), strict=True)
    )


def _located(name: str, storages: Storages) -> StoragePath | None:
    """Return the path of a name; None if it is no path of a known storage, which another function reports."""
    if Path(name).exists():
        return Path(name)
    with suppress(ValueError):
        try:
            return storages.locate(name)
        except ImportError:
            raise click.ClickException(f"{without_secrets(name)}: {NEEDS_PYARROW}") from None
    return None
