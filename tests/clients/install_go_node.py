"""Go and Node clients and their drivers, in build/clients: `python tests/clients/install_go_node.py` puts them there.

Versions are pinned in drivers/go/go.mod and drivers/node/package.json. Where nothing changed this does nothing; a
toolchain that is not on the machine is told of, and the tests of its clients skip.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

DRIVERS = Path(__file__).with_name("drivers")
INSTALLED = Path(__file__).resolve().parents[2] / "build" / "clients"
GO_DRIVER = INSTALLED / "go" / "driver"
NODE_FOLDER = INSTALLED / "node"
# Modules for the drivers: those that npm installed, and ours that stand in for what would have to be compiled.
NODE_ENVIRONMENT = {
    "NODE_PATH": os.pathsep.join(
        str(path) for path in (NODE_FOLDER / "node_modules", DRIVERS / "node" / "codecs")
    )
}


class InstallError(Exception):
    """A toolchain failed; the message is one line."""


@dataclass(frozen=True)
class Toolchain:
    """What builds a language's drivers. `made_from`: the files that a build depends on; `build` takes no time twice."""

    name: str
    programs: Sequence[str]
    folder: Path
    made_from: Sequence[Path]
    build: Callable[[], None]

    @property
    def missing(self) -> str | None:
        """Which of its programs is not on the machine."""
        return next((program for program in self.programs if shutil.which(program) is None), None)

    @property
    def is_installed(self) -> bool:
        return self._stamp.is_file() and self._stamp.read_text() == self._fingerprint()

    def install(self) -> None:
        if not self.is_installed:
            self._stamp.unlink(missing_ok=True)
            self.folder.mkdir(parents=True, exist_ok=True)
            self.build()
            self._stamp.write_text(self._fingerprint())

    @property
    def _stamp(self) -> Path:
        return self.folder / "installed-from"

    def _fingerprint(self) -> str:
        return sha256(b"".join(path.read_bytes() for path in self.made_from)).hexdigest()


def build_go() -> None:
    run(["go", "build", "-buildvcs=false", "-o", str(GO_DRIVER), "."], DRIVERS / "go", {"GO111MODULE": "on"})


def build_node() -> None:
    shutil.copyfile(DRIVERS / "node" / "package.json", NODE_FOLDER / "package.json")
    # Nothing native is compiled; the drivers bring codecs that need no compiler.
    run(["npm", "install", "--omit=optional", "--ignore-scripts", "--no-audit", "--no-fund"], NODE_FOLDER)


def run(command: Sequence[str], folder: Path, environment: Mapping[str, str] | None = None) -> None:
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **(environment or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode:
        last = (done.stdout.splitlines() or ["no output"])[-1]
        raise InstallError(f"{' '.join(command)} ended with {done.returncode}: {last}")


GO = Toolchain("Go", ["go", "cc"], GO_DRIVER.parent, sorted((DRIVERS / "go").iterdir()), build_go)
NODE = Toolchain("Node", ["node", "npm"], NODE_FOLDER, [DRIVERS / "node" / "package.json"], build_node)


def main() -> None:
    for toolchain in (GO, NODE):
        if toolchain.missing:
            print(f"{toolchain.name}'s clients are left out: {toolchain.missing} is not on this machine")
            continue
        try:
            toolchain.install()
        except InstallError as error:
            sys.exit(str(error))


if __name__ == "__main__":
    main()
