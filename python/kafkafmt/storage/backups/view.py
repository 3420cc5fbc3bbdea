"""A backup as a log directory."""

from __future__ import annotations

from typing import Any

from kafkafmt.storage.keys import KeyRing
from kafkafmt.storage.paths import StoragePath
from kafkafmt.storage.views import ViewFileSystem, ViewTree


class BackupFileSystem(ViewFileSystem):
    """A backup as a log directory."""

    def __init__(
        self, base: StoragePath, key_ring: KeyRing | None = None, generation: str | None = None
    ) -> None:
        super().__init__()
        self._base, self._key_ring = base, key_ring
        self._generation = generation

    def __reduce__(self) -> tuple[Any, ...]:
        return BackupFileSystem, (self._base, self._key_ring, self._generation)

    def load(self) -> ViewTree:
        raise NotImplementedError
