"""The file systems that users' paths are on: the local one, and those of URIs that `pyarrow.fs` reaches.

Those of `s3://` (or `s3a://`), `gs://`, `hdfs://`, `viewfs://`, `abfs://` and `file://`. A URI's path is taken as it
stands, without percent-encoding.

What a file system has to be told goes in the query of the URI, as `pyarrow.fs.FileSystem.from_uri` takes it, or
in options of the same names, which hold for every URI that does not say otherwise:

    s3://bucket/logs?region=eu-west-1
    s3://bucket/logs?endpoint_override=minio:9000&scheme=http

Credentials are those of the environment, of `~/.aws`, of the machine's role, or the options `access_key` and
`secret_key`; S3 URIs take them too, percent-encoded, as `s3://key:secret@bucket/logs`. They stay in the file
system's object: no name of a file shows them, and no error.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, quote, urlencode

from kafkafmt.remote import file_system_errors, told

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

CREDENTIAL_OPTIONS = ("access_key", "secret_key")
# What the file systems may have to be told, of what `pyarrow.fs.FileSystem.from_uri` takes, that concerns reading.
FILE_SYSTEM_OPTIONS = (
    "region",
    "scheme",
    "endpoint_override",
    *CREDENTIAL_OPTIONS,
    "project_id",
    "retry_limit_seconds",
    "user",
    "kerb_ticket",
)

_URI = re.compile(
    r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*):(?://(?P<authority>[^/?]*))?(?P<path>/[^?]*)?(?:\?(?P<query>.*))?"
)
_SCHEMES = ("s3", "gs", "gcs", "hdfs", "viewfs", "abfs", "abfss")
_ALIASES = {"s3a": "s3", "s3n": "s3"}
_CREDENTIALS = re.compile(r"//[^@/:]*:[^@]*@")  # a secret may have a slash that should have been encoded


@dataclass(frozen=True, eq=False)
class Root:
    """A file system that paths name. `uri` stands for `base`, the folder that all of them are in.

    Both are empty for local paths.
    """

    filesystem: FileSystem
    uri: str = ""
    base: str = ""

    @property
    def is_local(self) -> bool:
        return not self.uri

    def uri_of(self, path: str) -> str:
        """What to call a file, or a folder: an absolute local path, or a URI without credentials and query."""
        return self.uri + path[len(self.base) :]


class Roots:
    """The file systems that paths name, each opened once; `options` hold for every URI that does not say otherwise."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = options
        self._opened: dict[tuple[str, str], Root] = {}

    def locate(self, path: str) -> tuple[Root, str]:
        """The file system that a path is on, and the path in it, without a slash at its end.

        Raises ValueError for a scheme that no file system has, and for what its file system is told and does not
        take; OSError of the latter.
        """
        match = _URI.fullmatch(path)
        if match is None or (match["authority"] is None and match["scheme"].lower() != "file"):
            return self._local(), str(Path(path).absolute()).rstrip("/")
        scheme = _ALIASES.get(match["scheme"].lower(), match["scheme"].lower())
        authority, within = match["authority"] or "", match["path"] or ""
        if scheme == "file":
            if authority not in ("", "localhost"):
                raise ValueError(f"{path}: expected file:///path, found the host {authority}")
            return self._local(), str(Path(within or "/")).rstrip("/")
        if scheme not in _SCHEMES:
            known = ", ".join(f"{name}://" for name in ("file", *_SCHEMES))
            shown = _without_credentials(path)
            raise ValueError(f"{shown}: no file system has that scheme; expected one of {known}")
        root = self._remote(scheme, authority, match["query"] or "")
        return root, "/".join([root.base, *(name for name in within.split("/") if name)])

    def _local(self) -> Root:
        from pyarrow.fs import LocalFileSystem

        return self._opened.setdefault(("", ""), Root(LocalFileSystem()))

    def _remote(self, scheme: str, authority: str, query: str) -> Root:
        if scheme == "s3" and ":" in authority and "@" not in authority:
            # Not shown: what follows the colon is the beginning of a secret.
            raise ValueError(
                "s3://...: expected a bucket; a secret in a URI is percent-encoded, its / as %2F"
            )
        settings = {**self._options, **dict(parse_qsl(query, keep_blank_values=True))}
        key, secret = settings.pop("access_key", None), settings.pop("secret_key", None)
        if (key is None) != (secret is None):
            raise ValueError("options access_key and secret_key: expected both or neither")
        if key is not None and secret is not None and scheme == "s3" and "@" not in authority:
            authority = f"{quote(key, safe='')}:{quote(secret, safe='')}@{authority}"
        location = f"{scheme}://{authority}", urlencode(settings)
        if location not in self._opened:
            root = _opened(*location)
            if any(other.uri == root.uri for other in self._opened.values()):
                # Names of files would not tell which of the two they are in.
                raise ValueError(f"{root.uri}: expected the same settings for all of its paths, found others")
            self._opened[location] = root
        return self._opened[location]


def _opened(root: str, query: str) -> Root:
    import pyarrow as pa
    from pyarrow.fs import FileSystem

    shown = _without_credentials(root)
    try:
        filesystem, base = FileSystem.from_uri(f"{root}/?{query}" if query else f"{root}/")
    except pa.ArrowInvalid as error:
        raise ValueError(f"{shown}: {_without_credentials(str(error))}") from None
    except file_system_errors() as error:
        raise told(OSError(_without_credentials(str(error))), "no file system", shown) from None
    return Root(filesystem, shown, base.rstrip("/"))


def _without_credentials(text: str) -> str:
    """A URI, or a message with one in it, without `key:secret@`."""
    return _CREDENTIALS.sub("//", text)


def has_credentials(text: str) -> bool:
    """Whether a URI in a text has `key:secret@`, or a query with one of the options for credentials."""
    return _without_credentials(text) != text or any(f"{name}=" in text for name in CREDENTIAL_OPTIONS)


def without_secrets(path: str) -> str:
    """A path as a user gave it, fit to be shown: of a URI without credentials and query.

    >>> without_secrets("s3://key:secret@bucket/logs?region=eu-west-1")
    's3://bucket/logs'
    """
    match = _URI.fullmatch(path)
    if match is None or match["authority"] is None:
        return path
    return _without_credentials(path).partition("?")[0]
