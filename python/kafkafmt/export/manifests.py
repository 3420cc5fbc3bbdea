"""The manifests of a table of Parquet files, of which the one with the highest number is the state of the table.

A run commits by `<number>.json`, one above the manifest that it has read. No store creates a file only if its name is
free. So a run that was suspended, and taken for dead, may still write its manifest later, and its files may be gone.
Therefore a run that finds dead ones decides first whether they have committed, and removes files after that:

1. It writes `<number>-<run>.fence`, with a number above that of any manifest that a dead run can still write.
2. It lists all numbers. The highest manifest below the fence is the last one that counts.
3. It writes that again, above the fence. Without any it writes `null`.

A run lists the numbers again after each file that it has written. So either a dead run finds the fence, or its manifest
is found in step 2. A run that finds a higher number does not continue, and removes nothing.
"""

from __future__ import annotations

import contextlib
import json
import re
from typing import TYPE_CHECKING, Any, NamedTuple

from kafkafmt.export.errors import ExportError, TableConflictError
from kafkafmt.export.manifest_content import ensure_manifest
from kafkafmt.storage import read_file, storage_of, write_file

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kafkafmt.storage import StoragePath

FORMAT = 1
_MANIFEST, _FENCE = ".json", ".fence"
_DIGITS = 20
_NAME = re.compile(rf"\d{{{_DIGITS}}}({re.escape(_MANIFEST)}|-\w+{re.escape(_FENCE)})")


class Manifest(NamedTuple):
    """The last manifest of a table. number: the highest one in use. content: None without any commit."""

    number: int
    content: dict[str, Any] | None


class Manifests:
    """The manifests in a folder. table: their table, for messages."""

    def __init__(self, folder: StoragePath, table: StoragePath) -> None:
        self._folder, self._table = folder, table

    def last(self) -> Manifest:
        """Return the last manifest. Raises ExportError if it is damaged, and OSError."""
        names = self._names()
        last = _last_manifest(names)
        content = None if last is None else self._read(last)
        return Manifest(_number(names[-1]) if names else 0, content)

    def commit(self, number: int, content: Mapping[str, Any]) -> None:
        """Write a manifest.

        Raises TableConflictError if another run has written one of this number. Raises ExportError if another run has
        written a higher number: then it decides whether this one counts.
        """
        path = self._folder / f"{number:0{_DIGITS}}{_MANIFEST}"
        self._write_new(path, json.dumps(content).encode())
        if self._is_overtaken(path.name):
            raise ExportError(
                f"{self._table}: it is not known whether it was committed: this export was suspended, and another one "
                "has begun meanwhile: run this again"
            )

    def decide(self, run: str) -> None:
        """Decide which dead runs have committed. Later manifests of them do not count.

        Raises TableConflictError if another run does so, too.
        """
        names = self._names()
        highest = _number(names[-1]) if names else 0
        fence = f"{highest + 2:0{_DIGITS}}-{run}{_FENCE}"
        write_file(self._folder / fence, run.encode())
        names = self._names()
        if any(_number(name) >= _number(fence) for name in names if name != fence):
            raise self._conflict()
        last = _last_manifest(names)
        content = b"null" if last is None else read_file(self._folder / last)
        decision = self._folder / f"{highest + 3:0{_DIGITS}}{_MANIFEST}"
        self._write_new(decision, content)
        if self._is_overtaken(decision.name):
            raise self._conflict()

    def remove_old(self) -> None:
        """Remove all but the last manifest."""
        names = self._names()
        last = _last_manifest(names)
        for name in names:
            if last is not None and name < last:
                storage_of(self._folder).delete(self._folder / name)

    def _write_new(self, path: StoragePath, data: bytes) -> None:
        try:
            storage_of(path).write_new(path, [data])
        except FileExistsError:
            raise self._conflict() from None

    def _is_overtaken(self, name: str) -> bool:
        return any(_number(one) > _number(name) for one in self._names())

    def _conflict(self) -> TableConflictError:
        return TableConflictError(
            f"{self._table}: another export has committed meanwhile: nothing was changed; run this again"
        )

    def _names(self) -> list[str]:
        """Return the names of manifests and fences, by their numbers."""
        folder = self._folder
        with contextlib.suppress(FileNotFoundError), storage_of(folder).entries(folder) as entries:
            return sorted(one.name for one in entries if _NAME.fullmatch(one.name))
        return []

    def _read(self, name: str) -> dict[str, Any] | None:
        path = self._folder / name
        try:
            content = json.loads(read_file(path))
            if content is None:
                return None
            if content["format"] != FORMAT:
                raise ExportError(f"{path}: expected format {FORMAT}, found {content['format']!r}")
            ensure_manifest(content)
        except (ValueError, KeyError, TypeError):
            raise ExportError(f"{path}: expected the manifest of an export, found other content") from None
        return dict(content)


def _last_manifest(names: list[str]) -> str | None:
    return next((name for name in reversed(names) if name.endswith(_MANIFEST)), None)


def _number(name: str) -> int:
    return int(name[:_DIGITS])
