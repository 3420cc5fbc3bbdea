"""Options that several commands share, and a decorator that adds several options."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, TypeVar, get_args

import click
from click.core import ParameterSource

from kafkafmt._util.extras import needed_by
from kafkafmt.cli.values import KEY_RING
from kafkafmt.memory.errors import MemoryPlanError
from kafkafmt.memory.store_kind import StoreKind
from kafkafmt.server.options import LogFormat, LogLevel
from kafkafmt.types import ISOLATIONS, Codec

_Command = TypeVar("_Command", bound=Callable[..., Any])


class Decorator(Protocol):
    """Adds options to a command."""

    def __call__(self, command: _Command, /) -> _Command: ...


def options(*decorators: Decorator) -> Decorator:
    """Return a decorator that adds options. `--help` shows them in this order."""

    def decorate(command: _Command) -> _Command:
        for decorator in reversed(decorators):
            command = decorator(command)
        return command

    return decorate


def json_option(help_text: str) -> Decorator:
    """Return a decorator that adds `--json`."""
    return click.option("--json", "as_json", is_flag=True, help=help_text)


def _codec_of(_: click.Context, __: click.Parameter, name: str | None) -> Codec | None:
    """Return the codec of that name; None if there is no name."""
    return None if name is None else Codec[name.upper()]


def codec_option(help_text: str) -> Decorator:
    """Return a decorator that adds `--codec`."""
    names = click.Choice([codec.name.lower() for codec in Codec])
    return click.option("--codec", type=names, callback=_codec_of, help=help_text)


def zstd_fallback_option(help_text: str) -> Decorator:
    """Return a decorator that adds `--zstd-fallback`."""
    names = click.Choice(["gzip", "snappy", "lz4", "none"])
    return click.option("--zstd-fallback", type=names, callback=_codec_of, help=help_text)


_STORE_KINDS = {
    ("rocksdb", "on"): StoreKind.CACHED,
    ("rocksdb", "off"): StoreKind.UNCACHED,
    ("rocksdb", "dirty"): StoreKind.DIRTY_MAP,
    ("memory", None): StoreKind.IN_MEMORY,
}


def store_options() -> Decorator:
    """Return a decorator that adds `--store` and `--cache`. `store_kind` turns their values into a StoreKind."""
    return options(
        click.option(
            "--store",
            type=click.Choice(["rocksdb", "memory"]),
            help="Where the stores are: on disk, or in memory until they outgrow it.  [default: rocksdb]",
        ),
        click.option(
            "--cache",
            type=click.Choice(["on", "off", "dirty"]),
            help="Above RocksDB: a cache, none, or only a map of the keys that were changed.  [default: on]",
        ),
    )


def store_kind(store: str | None, cache: str | None) -> StoreKind:
    """Return the kind that `--store` and `--cache` name. Raises UsageError for a cache above a store in memory."""
    if store == "memory" and cache is not None:
        raise click.UsageError("--cache is for --store rocksdb: a store in memory has no cache")
    name = store or "rocksdb"
    return _STORE_KINDS[name, None if name == "memory" else cache or "on"]


def isolation_option(help_text: str, *, default: str | None = None) -> Decorator:
    """Return a decorator that adds `--isolation`."""
    return click.option("--isolation", type=click.Choice(sorted(ISOLATIONS)), default=default, help=help_text)


def key_ring_option() -> Decorator:
    """Return a decorator that adds `--key-ring`. The types and callbacks of `kafkafmt.cli.values` apply it to paths."""
    return click.option(
        "--key-ring",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        is_eager=True,  # before the paths
        expose_value=False,
        callback=_keep_key_ring,
        metavar="FILE",
        help="The keys of encrypted tiered storage and backups.",
    )


def _keep_key_ring(ctx: click.Context, _: click.Parameter, path: Path | None) -> None:
    if path is not None:
        ctx.meta[KEY_RING] = str(path.absolute())


def from_segment_start_option() -> Decorator:
    """Return a decorator that adds `--from-segment-start`."""
    return click.option(
        "--from-segment-start",
        is_flag=True,
        help="Also read records below the log start offset (ignore log-start-offset-checkpoint).",
    )


class _OnCorrupt(click.Choice[str]):
    """`fail` or `skip`. `earlier` is the name of `fail` in an earlier release, which is still accepted."""

    def __init__(self, earlier: str | None) -> None:
        super().__init__(("fail", "skip"))
        self._earlier = earlier

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return super().convert("fail" if value == self._earlier else value, param, ctx)


def on_corrupt_option(help_text: str, *, earlier: str | None = None) -> Decorator:
    """Return a decorator that adds `--on-corrupt`. With `skip`, damage does not change the exit status."""
    return click.option("--on-corrupt", type=_OnCorrupt(earlier), default="fail", help=help_text)


def log_options() -> Decorator:
    """Return a decorator that adds `--log-format` and `--log-level`."""
    return options(
        click.option(
            "--log-format",
            type=click.Choice(get_args(LogFormat)),
            default="auto",
            help="Format of log lines on standard error; auto: text on a terminal, else JSON.",
        ),
        click.option(
            "--log-level",
            type=click.Choice(get_args(LogLevel)),
            default="info",
            help="Lowest level that is logged.",
        ),
    )


class _SettingType(click.ParamType[tuple[str, str]]):
    """KEY=VALUE. Values may be passwords, so errors do not contain the text."""

    name = "setting"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str]:
        key, equals, setting = value.partition("=")
        if not key.strip() or not equals:
            self.fail(
                "expected KEY=VALUE, found no '='" if key.strip() else "expected KEY=VALUE, found no key"
            )
        return key.strip(), setting.strip()


def client_options(side: str, help_text: str, file_help: str) -> Decorator:
    """Return a decorator that adds `--<side>-config` and `--<side>-config-file`, for `client_settings`.

    Secrets are refused on the command line, which other users of the machine can see.
    """
    return options(
        click.option(
            f"--{side}-config",
            type=_SettingType(),
            multiple=True,
            callback=_refuse_secrets,
            metavar="KEY=VALUE",
            help=help_text,
        ),
        click.option(
            f"--{side}-config-file",
            type=click.Path(exists=True, dir_okay=False, path_type=Path),
            help=file_help,
        ),
    )


def _refuse_secrets(
    ctx: click.Context, param: click.Parameter, settings: tuple[tuple[str, str], ...]
) -> tuple[tuple[str, str], ...]:
    assert param.name is not None
    if settings and ctx.get_parameter_source(param.name) is ParameterSource.COMMANDLINE:
        from kafkafmt.client.client_config import is_secret
        from kafkafmt.storage.locations import has_credentials

        option = param.opts[0]
        for name, value in settings:
            # The address of a proxy is no secret; a password in it is.
            if has_credentials(value) or (is_secret(name) and "proxy" not in name):
                raise click.UsageError(
                    f"{option} {name}=...: others can see a command line; use {option}-file", ctx
                )
    return settings


def client_settings(given: tuple[tuple[str, str], ...], path: Path | None) -> Mapping[str, str]:
    """Return the settings of a file and of the command line. The command line overrides the file.

    path: a file in UTF-8 with a KEY=VALUE a line. Empty lines and lines that begin with # are skipped. Raises
    click.ClickException for any other line, and for a file that cannot be read or is not UTF-8.
    """
    settings: dict[str, str] = {}
    try:
        lines = [] if path is None else path.read_text("utf-8").splitlines()
    except OSError as error:
        raise click.ClickException(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise click.ClickException(
            f"{path}: expected UTF-8, found {error.object[error.start]:#04x} at byte {error.start}"
        ) from None
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        key, equals, value = line.partition("=")
        if not key.strip() or not equals:
            raise click.ClickException(f"{path}, line {number}: expected KEY=VALUE")
        settings[key.strip()] = value.strip()
    return {**settings, **dict(given)}


@contextmanager
def needs(what: str, extra: str) -> Iterator[None]:
    """Raise click.ClickException if the block imports a missing module: `what` needs it, `extra` installs it."""
    try:
        with needed_by(what, extra):
            yield
    except ModuleNotFoundError as error:
        raise click.ClickException(str(error)) from None


@contextmanager
def cluster_errors(what: str, *more: type[Exception], extra: str = "mirror") -> Iterator[None]:
    """Raise click.ClickException for errors of kafka-python, for types in `more`, and if a module is missing.

    extra: what installs the modules that `what` needs.
    """
    with needs(what, extra):
        from kafka.errors import KafkaError

        try:
            yield
        except (KafkaError, *more) as error:
            raise click.ClickException(str(error)) from None


@contextmanager
def memory_errors() -> Iterator[None]:
    """Raise click.UsageError if the memory limit is too small (MemoryPlanError)."""
    try:
        yield
    except MemoryPlanError as error:
        raise click.UsageError(f"--memory: {error}") from None
