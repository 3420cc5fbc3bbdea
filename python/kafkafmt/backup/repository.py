"""The folder of a backup: its identity, and its generations.

No object is ever changed. A manifest is written after all that it names, so a generation is complete when it is listed.
Two runs that write at the same time do no harm: each names its own objects, and the later one is refused.
"""

from __future__ import annotations

import json
import secrets
import time
from contextlib import suppress

from kafkafmt.storage import StoragePath, read_file, storage_of, write_file
from kafkafmt.storage.backups.errors import BackupError
from kafkafmt.storage.backups.generations import (
    generation_names,
    generation_path,
    parse_identity,
    read_generation,
)
from kafkafmt.storage.backups.manifest import BACKUP_FILE, FORMAT_VERSION, Manifest


class Repository:
    """The backup in a folder, which `create` makes. Raises BackupError if the folder is another thing."""

    def __init__(self, path: StoragePath) -> None:
        self.path = path
        self.id = ""

    def create(self) -> None:
        """Read the identity of the backup, or give it one if the folder is empty."""
        try:
            data = read_file(self.path / BACKUP_FILE)
        except FileNotFoundError:
            data = self._new_identity()
        self.id = self._parsed_id(data)

    def generations(self) -> list[str]:
        """Return the names of all generations, the last one last."""
        return generation_names(self.path)

    def read(self, name: str) -> Manifest:
        """Read the manifest of a generation. Raises BackupError, and OSError."""
        return read_generation(self.path, name)

    def write(self, manifest: Manifest) -> None:
        """Write a generation. Raises BackupError if another run has written one after its parent.

        Raises it also if another run has replaced the identity, as of two first runs at the same moment: encrypted
        segments of this run cannot be read with another identity.
        """
        found = self._parsed_id(read_file(self.path / BACKUP_FILE))
        if found != self.id:
            raise BackupError(
                f"{self.path / BACKUP_FILE}: id: expected {self.id}, found {found}: another backup began meanwhile"
            )
        self._ensure_last(manifest.parent, [])
        path = generation_path(self.path, manifest.name)
        write_file(path, manifest.encode())
        try:
            self._ensure_last(manifest.parent, [manifest.name])
        except BackupError:
            storage_of(path).delete(path)  # or it could become the last generation
            raise

    def _ensure_last(self, parent: str | None, own: list[str]) -> None:
        later = [one for one in self.generations() if one > (parent or "") and one not in own]
        if later:
            raise BackupError(
                f"{self.path}: another backup wrote generation {later[-1]} meanwhile: expected one backup at a time"
            )

    def _new_identity(self) -> bytes:
        """Write an identity. The folder must be empty, so that a backup is not mixed with other files."""
        if self._has_others():
            raise BackupError(
                f"{self.path}: expected a backup or an empty folder, found other files and no {BACKUP_FILE}"
            )
        identity = {
            "version": FORMAT_VERSION,
            "id": secrets.token_hex(16),
            "created_ms": time.time_ns() // 1_000_000,
        }
        path = self.path / BACKUP_FILE
        write_file(path, json.dumps(identity).encode())
        return read_file(path)

    def _parsed_id(self, data: bytes) -> str:
        return parse_identity(data, str(self.path / BACKUP_FILE)).id

    def _has_others(self) -> bool:
        with suppress(FileNotFoundError), storage_of(self.path).entries(self.path) as entries:
            return any(not entry.name.startswith(".") for entry in entries)
        return False
