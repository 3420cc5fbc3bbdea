"""Find the storage of a path that a user gives: a local path, or a URI of a file system of `pyarrow.fs`.

The schemes are `s3://` (or `s3a://`), `gs://`, `hdfs://`, `viewfs://`, `abfs://` and `file://`. The path of a URI is
not percent-decoded.

`tiered+` before a URI reads tiered storage (`kafkafmt.storage.tiered`), and `backup+` a backup
(`kafkafmt.storage.backups`), as a log directory. `!` ends the path of the store, if a path within the log directory
follows:

    tiered+s3://bucket/prefix
    backup+file:///backups/prod!/orders-0

Settings of a file system are given in the query of the URI, as `pyarrow.fs.FileSystem.from_uri` accepts them. Options
of the same names apply to every URI whose query does not set them:

    s3://bucket/logs?region=eu-west-1
    s3://bucket/logs?endpoint_override=minio:9000&scheme=http

Requests that fail for a passing reason are repeated: at most `max_attempts` times (6), for `retry_limit_seconds` (120).
S3 has also `connect_timeout_seconds` (5) and `request_timeout_seconds` (10): the longest time without a byte.

Credentials come from the environment, from `~/.aws`, from the role of the machine, or from the options `access_key` and
`secret_key`, with `session_token` if they are temporary. S3 URIs may have the first two too, percent-encoded:
`s3://key:secret@bucket/logs`. Names of files and error messages never contain them.
"""

from __future__ import annotations

import errno
import math
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TypeAlias
from urllib.parse import parse_qsl, quote, unquote, urlencode

from kafkafmt._util.extras import needed_by
from kafkafmt.records.remote import file_system_error, file_system_errors
from kafkafmt.records.retries import Retries
from kafkafmt.storage.keys import KeyRing
from kafkafmt.storage.paths import StoragePath, read_file
from kafkafmt.storage.remote import ReadableFileSystem, RemotePath, RemoteStorage
from kafkafmt.types import checked_path

# A path or URI: what `storage_path` takes.
AnyPath: TypeAlias = "str | os.PathLike[str] | RemotePath"

_KEY_OPTIONS = ("access_key", "secret_key")
CREDENTIAL_OPTIONS = (*_KEY_OPTIONS, "session_token")
# The settings of requests. Those of S3 are the timeouts.
_S3_OPTIONS = ("connect_timeout_seconds", "request_timeout_seconds")
_RETRY_OPTIONS = ("max_attempts", "retry_limit_seconds", *_S3_OPTIONS)
# The settings of `pyarrow.fs.FileSystem.from_uri` that concern reading, the session token, and those of requests.
FILE_SYSTEM_OPTIONS = (
    "region",
    "scheme",
    "endpoint_override",
    *CREDENTIAL_OPTIONS,
    "project_id",
    "user",
    "kerb_ticket",
    *_RETRY_OPTIONS,
)
# The settings of views. key_ring: the path of a file for `kafkafmt.storage.keys`. generation: of a backup, by default
# the last one.
VIEW_OPTIONS = ("key_ring", "generation")

_URI = re.compile(
    r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*):(?://(?P<authority>[^/?]*))?(?P<path>/[^?]*)?(?:\?(?P<query>.*))?"
)
_SCHEMES = ("s3", "gs", "gcs", "hdfs", "viewfs", "abfs", "abfss")
_VIEWS = ("tiered", "backup")
_ALIASES = {"s3a": "s3", "s3n": "s3"}
_CREDENTIALS = re.compile(r"//[^@/:]*:[^@]*@")  # a secret may have a slash that should have been encoded


class Storages:
    """Open the storages of paths, each once. options: settings for every URI whose query does not set them."""

    def __init__(self, options: Mapping[str, str] | None = None) -> None:
        self._options = {} if options is None else options
        self._opened: dict[tuple[str, str], RemoteStorage] = {}
        self._views: dict[tuple[str, str, str], RemoteStorage] = {}

    def locate(self, path: AnyPath) -> StoragePath:
        """Convert a path or URI to a path on its storage. A trailing slash of a URI is removed.

        Raises ValueError for an unknown scheme, and for settings that the file system does not accept. Raises OSError
        if the file system cannot be opened, and TypeError if `path` is no path.
        """
        if isinstance(path, RemotePath):
            return path
        match = _URI.fullmatch(path) if isinstance(path, str) else None
        if match is None or (match["authority"] is None and match["scheme"].lower() != "file"):
            return checked_path(path)
        assert isinstance(path, str)
        view, plus, _ = match["scheme"].lower().partition("+")
        if plus and view in _VIEWS:
            return self._in_view(view, path[len(view) + 1 :])
        scheme = _ALIASES.get(match["scheme"].lower(), match["scheme"].lower())
        authority, within = match["authority"] or "", match["path"] or ""
        if scheme == "file":
            if authority not in ("", "localhost"):
                raise ValueError(f"{path}: expected file:///path, found the host {authority}")
            return Path(within or "/")
        if scheme not in _SCHEMES:
            known = ", ".join(f"{name}://" for name in ("file", *_SCHEMES))
            shown = _without_credentials(path)
            raise ValueError(f"{shown}: no file system has that scheme; expected one of {known}")
        storage = self._remote(scheme, authority, match["query"] or "")
        return RemotePath(storage, "/".join([storage.base, *(name for name in within.split("/") if name)]))

    def _in_view(self, view: str, path: str) -> RemotePath:
        """Return the path in a view; `path` is the URI of its store, and of the path within the view after a `!`."""
        uri, _, query = path.partition("?")
        store, _, within = uri.partition("!")
        settings = {name: self._options[name] for name in VIEW_OPTIONS if name in self._options}
        of_store = []
        for name, value in parse_qsl(query, keep_blank_values=True):
            if name in VIEW_OPTIONS:
                settings[name] = value
            else:
                of_store.append((name, value))
        base = self.locate(f"{store}?{urlencode(of_store)}" if of_store else store)
        key = (
            view,
            base.as_uri() if isinstance(base, Path) else str(base),
            urlencode(sorted(settings.items())),
        )
        if key not in self._views:
            self._views[key] = view_of(view, base, settings).storage
        return RemotePath(self._views[key], "/".join(["", *(name for name in within.split("/") if name)]))

    def _remote(self, scheme: str, authority: str, query: str) -> RemoteStorage:
        if scheme == "s3" and ":" in authority and "@" not in authority:
            # The URI is not shown: the text after the colon is the beginning of a secret.
            raise ValueError(
                "s3://...: expected a bucket; a secret in a URI is percent-encoded, its / as %2F"
            )
        options = {name: value for name, value in self._options.items() if name not in VIEW_OPTIONS}
        settings = {**options, **dict(parse_qsl(query, keep_blank_values=True))}
        key, secret = settings.pop("access_key", None), settings.pop("secret_key", None)
        if (key is None) != (secret is None):
            raise ValueError("options access_key and secret_key: expected both or neither")
        if key is not None and secret is not None and scheme == "s3" and "@" not in authority:
            authority = f"{quote(key, safe='')}:{quote(secret, safe='')}@{authority}"
        if scheme != "s3":
            settings.pop("session_token", None)
        elif "session_token" in settings and "@" not in authority:
            raise ValueError("option session_token: expected access_key and secret_key with it")
        location = f"{scheme}://{authority}", urlencode(settings)
        if scheme == "s3" and "@" in authority:
            names = authority.partition("@")[0].partition(":")[::2]
            settings |= zip(_KEY_OPTIONS, map(unquote, names), strict=True)
        if location not in self._opened:
            storage = _opened(*location, settings)
            if any(other.uri == storage.uri for other in self._opened.values()):
                # Both would have the same file names.
                raise ValueError(
                    f"{storage.uri}: expected the same settings for all of its paths, found others"
                )
            self._opened[location] = storage
        return self._opened[location]


def storage_path(path: AnyPath) -> StoragePath:
    """Convert a path or URI to a path on its storage, without options. Raises as `Storages.locate`."""
    return Storages().locate(path)


def read_named(path: AnyPath) -> tuple[bytes, str]:
    """Return the content of a file, and its path for errors. Raises as `storage_path` and `read_file`."""
    located = storage_path(path)
    return read_file(located), str(located)


def view_of(view: str, base: StoragePath, settings: Mapping[str, str]) -> RemotePath:
    """Return the root of a view of a folder. view: `tiered` or `backup`. settings: those of `VIEW_OPTIONS`.

    Unlike in a URI, the path of the folder may have any characters. Raises ValueError for settings that the view does
    not have.
    """
    shown = base.as_uri() if isinstance(base, Path) else str(base)
    storage = RemoteStorage(_opened_view(view, base, settings), f"{view}+{shown}!", settings=settings)
    return RemotePath(storage, "")


def with_view_option(path: str, name: str, value: str) -> str:
    """Return a URI of a view with an option in its query, unless that sets it. Other paths are returned unchanged.

    >>> with_view_option("backup+file:///backups/prod", "key_ring", "/etc/keys.ini")
    'backup+file:///backups/prod?key_ring=%2Fetc%2Fkeys.ini'
    """
    view, plus, _ = path.partition(":")[0].lower().partition("+")
    _, mark, query = path.partition("?")
    if not plus or view not in _VIEWS or name in dict(parse_qsl(query, keep_blank_values=True)):
        return path
    return f"{path}{'&' if query else '' if mark else '?'}{urlencode({name: value})}"


def absolute_paths(paths: Iterable[AnyPath], options: Mapping[str, str] | None = None) -> list[StoragePath]:
    """Convert paths and URIs to paths on their storages, and local ones to absolute paths: other processes read them.

    options: as for `Storages`. Raises as `Storages.locate`.
    """
    storages = Storages(options)
    return [storages.locate(path).absolute() for path in paths]


def writable_path(path: AnyPath) -> Path:
    """Return a local path to write to. Raises OSError (EROFS) for a URI, and TypeError if `path` is no path."""
    if isinstance(path, RemotePath) or (isinstance(path, str) and is_uri(path)):
        raise OSError(
            errno.EROFS, "cannot be written: expected a local path, found a URI", without_secrets(str(path))
        )
    return checked_path(path)


def is_uri(path: str) -> bool:
    """Whether a path is a URI, of a known scheme or not, and no local path."""
    match = _URI.fullmatch(path)
    return match is not None and (match["authority"] is not None or match["scheme"].lower() == "file")


def _opened(root: str, query: str, settings: Mapping[str, str]) -> RemoteStorage:
    shown, scheme = _without_credentials(root), root.partition(":")[0]
    with needed_by(shown, "arrow"):
        import pyarrow as pa
        from pyarrow.fs import FileSystem
    numbers = {name: _number(name, settings[name], shown) for name in _RETRY_OPTIONS if name in settings}
    retries = Retries(
        int(numbers.get("max_attempts", Retries.max_attempts)),
        numbers.get("retry_limit_seconds", Retries.limit_seconds),
    )
    passed = [
        (name, value)
        for name, value in parse_qsl(query, keep_blank_values=True)
        if name not in numbers and name != "session_token"
    ]
    if scheme in ("gs", "gcs"):  # its client repeats requests itself
        passed.append(("retry_limit_seconds", f"{retries.limit_seconds:g}"))
    timeouts = {name.removesuffix("_seconds"): numbers[name] for name in _S3_OPTIONS if name in numbers}
    if timeouts and scheme != "s3":
        raise ValueError(f"{shown}: expected no {' or '.join(_S3_OPTIONS)}: only s3:// has timeouts")
    try:
        filesystem, base = FileSystem.from_uri(f"{root}/?{urlencode(passed)}" if passed else f"{root}/")
        if scheme == "s3":
            from kafkafmt.storage.s3 import with_timeouts

            token = settings.get("session_token", "")
            filesystem = with_timeouts(filesystem, session_token=token, **timeouts)
        elif filesystem.type_name == "hdfs":
            from kafkafmt.storage.hdfs import HdfsFileSystem

            filesystem = HdfsFileSystem(filesystem)
    except pa.ArrowInvalid as error:
        raise ValueError(f"{shown}: {_without_credentials(str(error))}") from None
    except file_system_errors() as error:
        raise file_system_error(OSError(_without_credentials(str(error))), "no file system", shown) from None
    return RemoteStorage(filesystem, shown, base.rstrip("/"), settings, retries=retries)


def _number(name: str, text: str, shown: str) -> float:
    try:
        number = float(int(text) if name == "max_attempts" else text)
    except ValueError:
        number = math.nan
    least = 1 if name == "max_attempts" else 0
    if not least <= number < math.inf or (name in _S3_OPTIONS and not number):
        expected = "1 or more" if least else "a number of seconds"
        raise ValueError(f"{shown}: option {name}: expected {expected}, found {text!r}")
    return number


def _opened_view(view: str, base: StoragePath, settings: Mapping[str, str]) -> ReadableFileSystem:
    key_ring = KeyRing.read(settings["key_ring"]) if "key_ring" in settings else None
    if view == "tiered":
        if "generation" in settings:
            raise ValueError(f"tiered+{base}: expected no generation: only a backup has generations")
        from kafkafmt.storage.tiered import TieredFileSystem

        return TieredFileSystem(base, key_ring)
    from kafkafmt.storage.backups import BackupFileSystem

    return BackupFileSystem(base, key_ring, settings.get("generation"))


def _without_credentials(text: str) -> str:
    """Remove `key:secret@` from a URI, or from a message that contains one."""
    return _CREDENTIALS.sub("//", text)


def has_credentials(text: str) -> bool:
    """Whether a text contains a URI with `key:secret@`, or with an option for credentials in its query."""
    return _without_credentials(text) != text or any(f"{name}=" in text for name in CREDENTIAL_OPTIONS)


def without_secrets(path: str) -> str:
    """Return the path that a user gave, fit to be shown: a URI loses its credentials and its query.

    >>> without_secrets("s3://key:secret@bucket/logs?region=eu-west-1")
    's3://bucket/logs'
    """
    match = _URI.fullmatch(path)
    if match is None or match["authority"] is None:
        return path
    return _without_credentials(path).partition("?")[0]
