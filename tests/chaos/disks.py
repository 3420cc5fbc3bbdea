"""A small disk that all processes of this mount namespace see."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from broker.small_disk import SmallDisk

if TYPE_CHECKING:
    from typing_extensions import Self


class MountedDisk(SmallDisk):
    """As SmallDisk, at its mount point. Only root of a mount namespace may mount it."""

    def __enter__(self) -> Self:
        self.path.mkdir(parents=True)
        command = ["mount", "-t", "tmpfs", "-o", f"size={self._size}", "tmpfs", str(self.path)]
        subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
        return self

    def __exit__(self, *_: object) -> None:
        subprocess.run(["umount", "--lazy", str(self.path)], check=True, stdin=subprocess.DEVNULL)

    @property
    def path(self) -> Path:
        return self._mount_point
