"""Sidecars: the files that say what the segments of a partition were made from. `<base offset><suffix>`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kafkafmt._util.files import NotRegularFileError, read_regular
from kafkafmt.log.segment import is_segment_file_name, segment_file_name
from kafkafmt.storage import StoragePath, read_file, storage_of


@dataclass(frozen=True)
class Sidecars:
    """The files in `folder`, `<base offset><suffix>`, that say what the segments of a partition were made from."""

    folder: StoragePath
    suffix: str

    def of(self, base_offset: int) -> StoragePath:
        """Return the path of the file of a segment."""
        return self.folder / segment_file_name(base_offset, self.suffix)

    def base_offsets(self) -> set[int]:
        """Return the base offsets of the segments that have a file."""
        try:
            with storage_of(self.folder).entries(self.folder) as entries:
                names = {
                    entry.name.removesuffix(self.suffix) for entry in entries if self._is_one(entry.name)
                }
        except (FileNotFoundError, NotADirectoryError):
            return set()
        return set(map(int, names))

    def _is_one(self, name: str) -> bool:
        return name.endswith(self.suffix) and is_segment_file_name(f"{name.removesuffix(self.suffix)}.log")


def read_sidecar(path: StoragePath) -> dict[str, Any] | None:
    """Read a sidecar; None if there is none, or if it is not one of kafkafmt.

    Raises NotRegularFileError, and OSError if a store cannot be read.
    """
    try:
        data = _read(path)
        found = None if data is None else json.loads(data)
    except ValueError:
        return None
    if not isinstance(found, dict) or not isinstance(found.get("source"), str):
        return None
    targets, outdated = found.get("targets"), found.get("outdated")
    if not isinstance(targets, dict) or not isinstance(outdated, dict):
        return None
    return found if all(map(is_segment_file_name, (*targets, *outdated))) else None


def is_made_from(sidecar: Mapping[str, Any], path: StoragePath) -> bool:
    """Whether a sidecar names this file as its source. Links to its folder give it other names."""
    source = str(sidecar["source"])
    if source == str(path):
        return True
    if not isinstance(path, Path):
        return False
    named = Path(source)
    return named.name == path.name and named.parent.resolve() == path.parent.resolve()


def source_state(path: StoragePath) -> dict[str, int]:
    """Return the entries of a sidecar that tell whether its source has changed. Raises OSError."""
    found = path.stat()
    return {"source_bytes": found.st_size, "source_mtime_ns": found.st_mtime_ns}


def _read(path: StoragePath) -> bytes | None:
    if not isinstance(path, Path):
        try:
            return read_file(path)
        except FileNotFoundError:
            return None
    try:
        return read_regular(path)
    except NotRegularFileError:
        raise
    except OSError:
        return None
