"""Read and write the files of a path, whatever storage it is on."""

from __future__ import annotations

from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from kafkafmt.storage.base import Storage
from kafkafmt.storage.local import LOCAL
from kafkafmt.storage.remote import RemotePath

if TYPE_CHECKING:
    from typing_extensions import Buffer

StoragePath: TypeAlias = Path | RemotePath
_Path = TypeVar("_Path", Path, RemotePath, Path | RemotePath)
_Asked = TypeVar("_Asked")
_Found = TypeVar("_Found")

_ASKED_AT_ONCE = 16


def storage_of(path: _Path) -> Storage[_Path]:
    """Return the storage of a path.

    >>> storage_of(Path("logs")) is LOCAL
    True
    """
    found: Any = LOCAL if isinstance(path, Path) else path.storage
    return found  # type: ignore[no-any-return]


def limit_read_ahead(path: StoragePath, most_bytes: int) -> None:
    """Limit the memory for what is read ahead from the storage of a path, if that is remote."""
    if isinstance(path, RemotePath):
        limit_cache = getattr(path.storage.filesystem, "limit_cache", None)
        if limit_cache is not None:
            most_bytes //= 2
            limit_cache(most_bytes)
        path.storage.read_ahead.max_bytes = most_bytes


def read_file(path: StoragePath) -> bytes:
    """Return the content of a file. Raises OSError; FileNotFoundError if there is no such file."""
    with storage_of(path).open(path) as file:
        return bytes(file.read())


def write_file(path: StoragePath, data: Buffer) -> None:
    """Write a whole file, which replaces another one. It appears complete, or not at all. Raises OSError."""
    storage_of(path).write(path, [data])


def no_folder_reason(path: StoragePath) -> str | None:
    """Return why a path is no folder, for an error that names the path; None if it is one. Raises OSError."""
    if path.is_dir():
        return None
    return "expected a folder, found a file" if path.exists() else "no such folder"


def side_by_side(
    ask: Callable[[_Asked], _Found], paths: Collection[_Asked], *, in_parallel: bool
) -> list[_Found]:
    """Call `ask` for each path, in threads if `in_parallel`, as remote ones cost a round trip. Returns the results."""
    if not in_parallel:
        return list(map(ask, paths))
    with ThreadPoolExecutor(_ASKED_AT_ONCE) as threads:
        return list(threads.map(ask, paths))
