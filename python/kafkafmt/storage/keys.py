"""Keys that wrap the data keys of encrypted segments.

A key ring is a file with a section for each key, whose name is the key's id:

    [backup-2026]
    file = /etc/kafkafmt/backup-2026.key

    [tiered-1]
    file = /etc/kafkafmt/tiered-1.pem
"""

from __future__ import annotations

import os
from pathlib import Path


class KeyRing:
    """The keys of a file, by id. Pickles as the path of the file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> KeyRing:
        """Read a key ring."""
        return cls(Path(path))

    def unwrap(self, key_id: str, wrapped: bytes) -> bytes:
        """Return the data key that was wrapped by the key of this id."""
        raise NotImplementedError

    def wrap(self, key_id: str, data_key: bytes) -> bytes:
        """Wrap a data key by the key of this id."""
        raise NotImplementedError
