"""The platforms for which wheels are built, and the Pythons of this machine and of other platforms' roots."""

from __future__ import annotations

import os
import platform as this_machine
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

GLIBC = "2.28"  # of manylinux_2_28, on which cibuildwheel builds
_PRINT_VERSION = """
import sys, sysconfig
print(*sys.version_info[:2], "t" if sysconfig.get_config_var("Py_GIL_DISABLED") else "", sep=".")
"""


class StepError(Exception):
    """A step failed; the message says which, and where its log is."""


@dataclass(frozen=True)
class Platform:
    """A platform of wheels: the names that the compiler, Python and pip have for it."""

    name: str
    tag: str
    target: str = ""  # of Zig
    multiarch: str = ""  # in the names of extension modules
    loader: str = ""  # of the C library, in the root
    compiled: tuple[str, ...] = ()  # packages that the tests need, and that have no wheels for the platform

    @property
    def machine(self) -> str:
        return self.name.partition("_")[2]

    @property
    def variable(self) -> str:
        return f"KAFKAFMT_ROOT_{self.name.upper()}"

    @property
    def is_native(self) -> bool:
        return (self.loader, self.machine) == ("", this_machine.machine()) and sys.platform == "linux"

    def accepts(self, wheel: str) -> bool:
        """Return whether a wheel of this name runs on this platform, or on older ones of its kind as well."""
        libc, _, newest = self.tag.removesuffix(f"_{self.machine}").partition("_")
        found = re.findall(rf"{libc}_(\d+)_(\d+)_{self.machine}\b", wheel)
        most = tuple(map(int, newest.split("_")))
        return any(tuple(map(int, version)) <= most for version in found)

    @property
    def pip_tags(self) -> list[str]:
        """The tags of wheels that run there, for `pip --platform`."""
        if self.name.startswith("musllinux"):
            return [f"musllinux_1_{minor}_{self.machine}" for minor in (1, 2)]
        minors = range(17, int(GLIBC.partition(".")[2]) + 1)
        return [f"manylinux2014_{self.machine}", *(f"manylinux_2_{minor}_{self.machine}" for minor in minors)]


def _manylinux(machine: str) -> Platform:
    tag = f"manylinux_{GLIBC.replace('.', '_')}_{machine}"
    return Platform(f"manylinux_{machine}", tag, f"{machine}-linux-gnu.{GLIBC}", f"{machine}-linux-gnu")


def _musllinux(machine: str) -> Platform:
    triple = f"{machine}-linux-musl"
    loader = f"lib/ld-musl-{machine}.so.1"
    return Platform(f"musllinux_{machine}", f"musllinux_1_2_{machine}", triple, triple, loader, ("lz4",))


PLATFORMS = (
    _manylinux("x86_64"),
    _manylinux("aarch64"),
    _musllinux("x86_64"),
    _musllinux("aarch64"),
    Platform("macosx_x86_64", "macosx"),
    Platform("macosx_arm64", "macosx"),
)


@dataclass(frozen=True)
class Interpreter:
    """A CPython: of this machine, or of the root of another platform."""

    version: str  # as 3.14t
    path: Path
    root: Path | None = None

    @property
    def number(self) -> str:
        return self.version.rstrip("t")

    @property
    def abi(self) -> str:
        return self.version.replace(".", "")


def version_of(path: Path | str) -> str | None:
    """Return the version of a CPython, as `3.14t`, or None if `path` does not run one."""
    try:
        done = subprocess.run([path, "-c", _PRINT_VERSION], capture_output=True, text=True, check=False)
    except OSError:
        return None
    major, _, rest = done.stdout.strip().partition(".")
    minor, _, flag = rest.partition(".")
    return f"{major}.{minor}{flag}" if done.returncode == 0 else None


def _candidates(version: str) -> Iterator[str]:
    yield from filter(None, os.environ.get("KAFKAFMT_PYTHONS", "").split(os.pathsep))
    name = f"python{version}"
    if on_path := shutil.which(name):
        yield on_path
    if shutil.which("pyenv"):
        root = subprocess.run(["pyenv", "root"], capture_output=True, text=True, check=False).stdout.strip()
        yield from map(str, sorted(Path(root, "versions").glob(f"*/bin/{name}")))
    if shutil.which("uv"):
        find = ["uv", "python", "find", "--no-project", "--no-python-downloads", version]
        yield subprocess.run(find, capture_output=True, text=True, check=False).stdout.strip()


def find_python(version: str) -> Interpreter | None:
    """Return the first CPython of a version on this machine."""
    for path in _candidates(version):
        if version_of(path) == version:
            return Interpreter(version, Path(path))
    return None


def find_in_root(version: str, root: Path) -> Interpreter | None:
    """Return the CPython of a version in the root of another platform."""
    for prefix in ("usr", "usr/local"):
        path = root / prefix / "bin" / f"python{version}"
        if path.exists() and (root / prefix / "include" / f"python{version}").is_dir():
            return Interpreter(version, path, root)
    return None


def headers(target: Interpreter, folder: Path) -> Path:
    """Copy the headers of a Python in a root, with the `pyconfig.h` of its platform, which Debian keeps elsewhere."""
    include = target.path.parents[1] / "include"
    name = f"python{target.version}"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(include / name, folder, ignore_dangling_symlinks=True)
    for own in include.glob(f"*-linux-*/{name}/pyconfig.h"):
        shutil.copy(own, folder)
    return folder


def write_launcher(path: Path, target: Interpreter, platform: Platform) -> Path:
    """Write a program that runs a Python of a root, and that the Python takes for itself (`sys.executable`)."""
    root = target.root
    assert root is not None
    if platform.loader and platform.machine == this_machine.machine():
        libraries = ":".join(str(root / folder) for folder in ("lib", "usr/lib", "usr/local/lib"))
        command = [root / platform.loader, "--library-path", libraries, "--argv0"]
    else:
        names = (f"qemu-{platform.machine}-static", f"qemu-{platform.machine}")
        qemu = next(filter(None, map(shutil.which, names)), None)
        if qemu is None:
            raise StepError(f"not tested: {names[1]} is not installed")
        command = [qemu, "-L", root, "-0"]
    line = shlex.join(map(str, command))
    home = f"export PYTHONHOME={shlex.quote(str(target.path.parents[1]))}"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'#!/bin/sh\n{home}\nexec {line} "$0" {shlex.quote(str(target.path))} "$@"\n')
    path.chmod(0o755)
    return path
