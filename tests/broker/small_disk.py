"""A disk that fills: a small file system in memory. It is in a mount namespace of its own, so that it needs no rights.

Only its keeper sees it mounted, a process that does nothing else. All others reach it through that process's /proc.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Self

KEEPER = 'mount -t tmpfs -o size="$2" tmpfs "$1" && echo mounted && exec cat'
MOUNTED = b"mounted\n"
BALLAST = "ballast"
BLOCK_BYTES = 4096


class DiskError(Exception):
    """This system lets nobody mount a file system in a namespace of his own."""


class SmallDisk:
    """A file system of `size` bytes. A context manager: what is on it is gone at the end."""

    def __init__(self, mount_point: Path, size: int) -> None:
        self._mount_point, self._size = mount_point, size

    def __enter__(self) -> Self:
        if shutil.which("unshare") is None:
            raise DiskError("no program `unshare`")
        self._mount_point.mkdir(parents=True)
        command = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", KEEPER, "sh"]
        self._keeper = subprocess.Popen(
            [*command, str(self._mount_point), str(self._size)],
            stdin=subprocess.PIPE,  # its end ends the keeper
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert self._keeper.stdout is not None
        if self._keeper.stdout.readline() != MOUNTED:
            _, said = self._keeper.communicate()
            raise DiskError(said.decode(errors="replace"))
        return self

    def __exit__(self, *_: object) -> None:
        self._keeper.communicate()

    @property
    def path(self) -> Path:
        return Path(f"/proc/{self._keeper.pid}/root{self._mount_point}")

    def fill(self, free: int) -> None:
        """Leave that many bytes free, in whole blocks."""
        with (self.path / BALLAST).open("wb") as ballast:
            ballast.write(bytes(shutil.disk_usage(self.path).free // BLOCK_BYTES * BLOCK_BYTES - free))

    def make_room(self) -> None:
        (self.path / BALLAST).unlink()
