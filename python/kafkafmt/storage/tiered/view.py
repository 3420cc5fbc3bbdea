"""Tiered storage (KIP-405) as a log directory."""

from __future__ import annotations

from typing import Any

from kafkafmt.storage.keys import KeyRing
from kafkafmt.storage.paths import StoragePath
from kafkafmt.storage.views import ViewFileSystem, ViewTree


class TieredFileSystem(ViewFileSystem):
    """Tiered storage (KIP-405) as a log directory."""

    def __init__(self, base: StoragePath, key_ring: KeyRing | None = None) -> None:
        super().__init__()
        self._base, self._key_ring = base, key_ring

    def __reduce__(self) -> tuple[Any, ...]:
        return TieredFileSystem, (self._base, self._key_ring)

    def load(self) -> ViewTree:
        raise NotImplementedError
