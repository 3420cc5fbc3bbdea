"""Try once what the program needs: network namespaces, TUN devices, a relay, and mounts."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from chaos.disks import MountedDisk
from chaos.network import Network

DISK_BYTES = 1 << 20


def main() -> None:
    folder = Path(tempfile.mkdtemp())
    with Network(["host"], seed=0), MountedDisk(folder / "disk", DISK_BYTES):
        pass
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
