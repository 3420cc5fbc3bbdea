"""Options that select records, and that decode their keys and values: the same on every command that has them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from kafkafmt.cli.options import Decorator, client_settings, options
from kafkafmt.cli.values import Time, complete_topics
from kafkafmt.log.time_range import TimeRange
from kafkafmt.mirror.addresses import ClusterAddress
from kafkafmt.storage.locations import has_credentials

if TYPE_CHECKING:
    from kafkafmt.decode import Schema, SchemaSource

ALL_BUT_INTERNAL = "all but Kafka's own"
TEXT_OR_BASE64 = "text, or else base64"
# `Format` and `Framing` of `kafkafmt.decode`, which needs pyarrow.
FORMATS = (
    "avro",
    "protobuf",
    "json",
    "text",
    "short",
    "integer",
    "long",
    "float",
    "double",
    "boolean",
    "uuid",
)
_REGISTRY = ("http://", "https://")
FRAMINGS = ("auto", "confluent", "confluent-headers", "apicurio", "apicurio-headers", "glue", "none")


class Topics(click.ParamType[tuple[str, ...]]):
    """Names and globs of topics, with commas between them. Names of topics have neither commas nor spaces."""

    name = "topics"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, ...]:
        if isinstance(value, tuple):
            return value
        parts = tuple(part.strip() for part in value.split(","))
        if not all(parts):
            self.fail(f"expected names or globs with commas between them, found {value!r}", param, ctx)
        return tuple(dict.fromkeys(parts))

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        before, comma, last = incomplete.rpartition(",")
        return [CompletionItem(f"{before}{comma}{one.value}") for one in complete_topics(ctx, param, last)]


class _NamedTime(Time):
    """A time, or one of some names."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return value if value in self._names else super().convert(value, param, ctx)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        return [CompletionItem(name) for name in self._names if name.startswith(incomplete)]


def topics_option(*, default: str = ALL_BUT_INTERNAL) -> Decorator:
    """Return a decorator that adds `--topics`. The value is a tuple of names and globs, or None.

    default: which topics these are without the option, for the help.
    """
    return click.option(
        "--topics",
        type=Topics(),
        metavar="TOPIC[,TOPIC]",
        help=f"Only these topics: names, or globs as 'page-*'.  [default: {default}]",
    )


def with_topics(address: ClusterAddress, topics: tuple[str, ...] | None) -> ClusterAddress:
    """Return the address with the topics of `--topics`. Raises click.UsageError if it has topics itself."""
    try:
        return address if topics is None else address.with_topics(topics)
    except ValueError as error:
        raise click.UsageError(f"--topics: {error}") from None


def time_range_options(*names: str, default: str = "") -> Decorator:
    """Return a decorator that adds `--from` and `--to`. `time_range` takes their values, from_time and to_time.

    names: what `--from` may be besides a time. default: for its help.
    """
    return options(
        click.option(
            "--from",
            "from_time",
            type=_NamedTime(names) if names else Time(),
            metavar="|".join((*names, "TIME")),
            help="Begin each partition at its first record at or after TIME: 2026-01-31T12:00:00Z, 2026-01-31, -2h"
            " (before now), or milliseconds since 1970."
            f"{default}",
        ),
        click.option(
            "--to",
            "to_time",
            type=Time(),
            metavar="TIME",
            help="End each partition before its first record at or after TIME.",
        ),
    )


def time_range(from_time: datetime | None, to_time: datetime | None) -> TimeRange:
    """Return the range of `--from` and `--to`. Raises UsageError if it is empty."""
    if from_time is not None and to_time is not None and from_time >= to_time:
        raise click.UsageError(
            f"--from {from_time.isoformat()} is not before --to {to_time.isoformat()}: no record is in between"
        )
    return TimeRange.between(from_time, to_time)


def decoding_options(*more_formats: str, default: str) -> Decorator:
    """Return a decorator that adds `--key-format`, `--value-format`, `--schemas` with its file, and `--framing`.

    more_formats: besides those of `kafkafmt.decode.Decoding`. default: what keys and values are without a format.
    """
    names = (*more_formats, *FORMATS)
    return options(
        *(
            click.option(
                f"--{side}-format",
                type=click.Choice(names),
                metavar="FORMAT",
                help=f"What {side}s are: {_listed(names)}.  [default: {default}]",
            )
            for side in ("key", "value")
        ),
        click.option(
            "--schemas",
            metavar="URL|PATH",
            help="Where the schemas of avro, protobuf and json are: a registry, a folder, or the file of one schema.",
        ),
        click.option(
            "--schemas-config-file",
            type=click.Path(exists=True, dir_okay=False, path_type=Path),
            help="A file of settings of the registry, one a line, as basic.auth.user.info=USER:PASSWORD.",
        ),
        click.option(
            "--framing",
            type=click.Choice(FRAMINGS),
            metavar="FRAMING",
            help=f"Where a payload has the id of its schema: {_listed(FRAMINGS)}."
            "  [default: confluent with a registry or a folder, else none]",
        ),
    )


def schemas_of_options(schemas: str | None, config_file: Path | None) -> SchemaSource | Schema | None:
    """Return the schemas of `--schemas`: a registry with the settings of a file, if there is one.

    Files are read, so that what is wrong with them is the error of the command and not of each record.

    Raises click.UsageError for settings without a registry, and for a URL with a password: others can see a command
    line. Raises UserError for settings that a registry does not have, and for files that are missing or damaged.
    """
    if schemas is not None and schemas.startswith(_REGISTRY) and has_credentials(schemas):
        raise click.UsageError(
            "--schemas: others can see a command line; --schemas-config-file has basic.auth.user.info=USER:PASSWORD"
        )
    if config_file is None:
        from kafkafmt.decode.planning import schema_source

        return None if schemas is None else schema_source(schemas)
    if schemas is None or not schemas.startswith(_REGISTRY):
        raise click.UsageError("--schemas-config-file is for the registry of --schemas URL")
    from kafkafmt.decode import RegistryOptions, SchemaRegistry

    return SchemaRegistry(schemas, RegistryOptions.of_settings(client_settings((), config_file)))


def _listed(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} or {names[-1]}"
