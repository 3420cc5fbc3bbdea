"""`--config FILE`: the options of a command in a TOML file, with the same names. The command line overrides it."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from kafkafmt._util.names import unknown_name
from kafkafmt.cli.options import Decorator
from kafkafmt.cli.values import FILE

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # the same module, for Python 3.10

_NAME = "config"
_META = "kafkafmt.config_file"
# The options that a file cannot have: those about the command line itself.
_LEFT_OUT = frozenset((_NAME, "help", "help-all", "check"))
# TOML's words for values that an option cannot have. The others are dates and times.
_KINDS: Mapping[type, str] = {dict: "a table", list: "a list"}


def config_option() -> Decorator:
    """Return a decorator that adds `--config`."""
    return click.option(
        f"--{_NAME}",
        type=FILE,
        is_eager=True,
        expose_value=False,
        callback=_apply,
        help="TOML file with options, named as here. Options of the command line override it.",
    )


def config_file(ctx: click.Context) -> Path | None:
    """Return the file of `--config`; None if there is none."""
    path: Path | None = ctx.meta.get(_META)
    return path


def _apply(ctx: click.Context, _: click.Parameter, path: Path | None) -> None:
    """Make the values of the file the defaults of the command."""
    if path is None or ctx.resilient_parsing:
        return
    values = _read(path)
    parameters = dict(_parameters(ctx.command))
    defaults: dict[str, Any] = {}
    for key, value in values.items():
        if key not in parameters:
            raise click.UsageError(f"{path}: {unknown_name('option', key, list(parameters))}", ctx)
        parameter = parameters[key]
        assert parameter.name is not None
        defaults[parameter.name] = _checked(ctx, parameter, f"{path}: {key}", value)
    ctx.meta[_META] = path
    ctx.default_map = {**(ctx.default_map or {}), **defaults}


def _read(path: Path) -> Mapping[str, Any]:
    try:
        values: dict[str, Any] = tomllib.loads(path.read_bytes().decode())
    except OSError as error:
        raise click.ClickException(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise click.ClickException(
            f"{path}: expected UTF-8, found another encoding at byte {error.start}"
        ) from None
    except tomllib.TOMLDecodeError as error:
        raise click.ClickException(f"{path}: {error}") from None
    return values


def _parameters(command: click.Command) -> Iterator[tuple[str, click.Parameter]]:
    """Yield the parameters that a file may have, by their names in it: options without dashes before them."""
    for one in command.params:
        if isinstance(one, click.Argument):
            assert one.name is not None
            yield one.name, one
            continue
        for option in (*one.opts, *one.secondary_opts):
            name = option.removeprefix("--")
            if name != option and name not in _LEFT_OUT and option not in one.secondary_opts:
                yield name, one


def _checked(ctx: click.Context, parameter: click.Parameter, place: str, value: Any) -> Any:
    """Return a value as a command line would have it. Raises click.UsageError, which names file and option."""
    is_flag = isinstance(parameter, click.Option) and parameter.is_flag
    if is_flag:
        if not isinstance(value, bool):
            raise click.UsageError(f"{place}: expected true or false, found {value!r}", ctx)
        return value
    if parameter.multiple if isinstance(parameter, click.Option) else False:
        texts: Any = _texts(ctx, place, value)
    else:
        texts = _text(ctx, place, value)
    try:
        parameter.type_cast_value(ctx, texts)
    except click.BadParameter as error:
        raise click.UsageError(f"{place}: {error.message}", ctx) from None
    return texts


def _texts(ctx: click.Context, place: str, value: Any) -> list[str]:
    """Return the values of an option that may be repeated: a table stands for KEY=VALUE of each of its keys."""
    if isinstance(value, dict):
        return [f"{key}={_text(ctx, f'{place}.{key}', one)}" for key, one in _flat(value)]
    if isinstance(value, list):
        return [_text(ctx, place, one) for one in value]
    return [_text(ctx, place, value)]


def _flat(table: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values of a table. TOML makes tables of keys with dots, as `security.protocol`."""
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{before}{key}.")
        else:
            yield f"{before}{key}", value


def _text(ctx: click.Context, place: str, value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | int | float):
        return str(value)
    found = _KINDS.get(type(value), "a date or a time")
    raise click.UsageError(f"{place}: expected a text or a number, found {found}", ctx)
