"""Types of option values that click lacks: sizes, folders and addresses; and what the shell completes."""

from __future__ import annotations

import math
import re
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, NamedTuple

import click
from click.shell_completion import CompletionItem

from kafkafmt._util.addresses import host_and_port
from kafkafmt._util.sizes import parse_size
from kafkafmt.storage import RemotePath, StoragePath, is_uri, no_folder_reason, storage_path
from kafkafmt.storage.locations import with_view_option, without_secrets
from kafkafmt.types import TopicPartition

NEEDS_PYARROW = "needs pyarrow: pip install 'kafkafmt[arrow]'"

_MOST = 2**63 - 1
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


class PathText(click.ParamType[str]):
    """A path or URI, as it was given. Empty text, as of an unset variable, is no path: not the current folder."""

    name = "path"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if value == "":
            self.fail("expected a folder or a URI, found ''", param, ctx)
        found: str = value
        return found


class LocalPath(click.Path):
    """A path to write to, which is local: also a URI of the scheme `file`. Other URIs are refused."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(path_type=Path, **settings)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "":
            self.fail("expected a path, found ''", param, ctx)
        if isinstance(value, str) and is_uri(value) and not Path(value).exists():
            found = Folder().convert(value, param, ctx)
            if isinstance(found, RemotePath):
                self.fail(f"{found}: expected a local path, found a URI", param, ctx)
            value = found
        return super().convert(value, param, ctx)


FILE = LocalPath(dir_okay=False)


def complete_files(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Have the shell complete files and folders."""
    return [CompletionItem(incomplete, type="file")]


def complete_folders(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Have the shell complete folders."""
    return [CompletionItem(incomplete, type="dir")]


def complete_topics(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete the topics of a local SRC that is on the command line already. Reads the names of its folders only."""
    # The value of --topics is not there yet, so click has left the arguments unparsed.
    source = ctx.params.get("source") or next(iter(ctx.args), None)
    if not isinstance(source, str | Path) or is_uri(str(source)):
        return []
    topics = set()
    with suppress(OSError):
        for folder in Path(source).iterdir():
            topic_partition = TopicPartition.from_folder_name(folder.name)
            if topic_partition is not None and topic_partition.topic.startswith(incomplete):
                topics.add(topic_partition.topic)
    return [CompletionItem(topic) for topic in sorted(topics)]


class Size(click.ParamType[int]):
    """A size in bytes, from `least` to `most`, parsed by `kafkafmt._util.sizes`."""

    name = "size"

    def __init__(self, *, least: int = 1, most: int = _MOST) -> None:
        self._least, self._most = least, most

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            return parse_size(value, least=self._least, most=self._most)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class Count(click.IntRange):
    """A number from `least` to `most`; None: as large as a C integer of 64 bits."""

    name = "n"

    def __init__(self, *, least: int = 1, most: int | None = None) -> None:
        super().__init__(least, most)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            number = int(value)
        except ValueError:
            self.fail(f"expected a whole number, found {value!r}", param, ctx)
        if number > _MOST:
            self.fail(f"expected at most {_MOST}, found {value}", param, ctx)
        found: int = super().convert(number, param, ctx)
        return found


class Seconds(click.FloatRange):
    """A time in seconds, above 0. may_be_zero: 0 is allowed, too."""

    name = "seconds"

    def __init__(self, *, may_be_zero: bool = False) -> None:
        super().__init__(min=0, min_open=not may_be_zero)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if not math.isfinite(number):
            self.fail(f"expected a number of seconds, found {value!r}", param, ctx)
        found: float = super().convert(number, param, ctx)
        return found


_BEFORE_NOW = re.compile(r"-(\d{1,9})(s|m|h|d)")
_LEAST_DIGITS = 12
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


class Time(click.ParamType[datetime]):
    """A date or a time in ISO 8601, milliseconds since 1970, or a time before now, as -2h.

    Without a time zone it is in UTC, as all times that commands print.
    """

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        if isinstance(value, datetime):
            return value
        try:
            found = self._parsed(value)
        except (ValueError, OverflowError):
            self.fail(
                f"{value!r} is not a time, as 2026-01-31T12:00:00Z, 2026-01-31, 1769860800000 (milliseconds"
                f" since 1970, of {_LEAST_DIGITS} digits or more) or -2h (s, m, h or d before now)",
                param,
                ctx,
            )
        return found if found.tzinfo is not None else found.replace(tzinfo=timezone.utc)

    def _parsed(self, text: str) -> datetime:
        if match := _BEFORE_NOW.fullmatch(text):
            return datetime.now(timezone.utc) - timedelta(**{_UNITS[match[2]]: int(match[1])})
        if re.fullmatch("[0-9]+", text):
            # Fewer digits are seconds since 1970, or a date without hyphens.
            if len(text) < _LEAST_DIGITS:
                raise ValueError(text)
            return _EPOCH + timedelta(milliseconds=int(text))
        # Python 3.10 does not parse the Z.
        return datetime.fromisoformat(re.sub("[zZ]$", "+00:00", text))


class OffsetOrTime(click.ParamType[int | datetime]):
    """An offset, which is a number of up to 18 digits, or a time as `Time`."""

    name = "offset|time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | datetime:
        if isinstance(value, str) and re.fullmatch("[0-9]{1,18}", value):
            return int(value)
        return value if isinstance(value, int) else Time().convert(value, param, ctx)


# The name in `click.Context.meta` of the path that `--key-ring` names.
KEY_RING = "kafkafmt.key_ring"


def with_key_ring(path: str, ctx: click.Context | None) -> str:
    """Return a path or URI as it was given, or a URI of tiered storage or a backup with the option `--key-ring`."""
    found = None if ctx is None else ctx.meta.get(KEY_RING)
    return path if found is None else with_view_option(path, "key_ring", found)


def paths_with_key_ring(ctx: click.Context, _: click.Parameter, paths: tuple[str, ...]) -> tuple[str, ...]:
    """Return `with_key_ring` of each path: the callback of an argument of several paths."""
    return tuple(with_key_ring(path, ctx) for path in paths)


class Folder(click.ParamType[StoragePath]):
    """A folder to read: a local path, or a URI that `kafkafmt.storage` supports."""

    name = "folder"

    def __init__(self, *, must_exist: bool = False) -> None:
        self._must_exist = must_exist

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> StoragePath:
        if isinstance(value, Path | RemotePath):
            return value
        value = PathText().convert(value, param, ctx)
        try:
            if not is_uri(value) or Path(value).exists():
                found: StoragePath = Path(value)
            else:
                found = storage_path(with_key_ring(value, ctx))
            reason = no_folder_reason(found) if self._must_exist else None
        except OSError as error:
            self.fail(f"{error.filename}: {error.strerror}" if error.filename else str(error), param, ctx)
        except ValueError as error:
            self.fail(str(error), param, ctx)
        except ImportError:
            self.fail(f"{without_secrets(value)}: {NEEDS_PYARROW}", param, ctx)
        if reason is not None:
            self.fail(f"{found}: {reason}", param, ctx)
        return found.resolve() if self._must_exist else found

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        return complete_folders(ctx, param, incomplete)


class Address(NamedTuple):
    """The host and port of a listener."""

    host: str
    port: int

    def __str__(self) -> str:
        return host_and_port(*self)


class AddressType(click.ParamType[Address]):
    """HOST:PORT, with an IPv6 address in brackets. least_port: 0 if port 0 may be given, which means any free port."""

    name = "host:port"

    def __init__(self, *, least_port: int) -> None:
        self._least_port = least_port

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Address:
        if isinstance(value, Address):
            return value
        match = re.fullmatch(r"(?:\[([^\]\s]+)\]|([^\s:\[\]]+)):(\d{1,5})", value)
        if match is None or not self._least_port <= int(match[3]) <= 65535:
            form = f"HOST:PORT, as 127.0.0.1:9092 or [::1]:9092, a port from {self._least_port} to 65535"
            self.fail(f"{value!r} is not {form}", param, ctx)
        return Address(match[1] or match[2], int(match[3]))
