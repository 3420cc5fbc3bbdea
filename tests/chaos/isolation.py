"""Namespaces of Linux for the whole program: its networks, mounts and processes end with it, however it ends.

The first process of a PID namespace is the program itself. When that ends, the kernel kills every other process in the
namespace. Network and mount namespaces end with their last process.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
ISOLATED = "--isolated"
CLONE_NEWNET = 0x40000000

_NAMESPACES = (
    "--user",
    "--map-root-user",
    "--mount",
    "--net",
    "--pid",
    "--fork",
    "--kill-child",
    "--mount-proc",
)
_PROGRAMS = ("unshare", "nsenter", "ip", "cc")
_CHECK_SECONDS = 240


def isolated(arguments: Sequence[str]) -> list[str]:
    """The command that runs `python -m` with the arguments in namespaces of its own."""
    return ["unshare", *_NAMESPACES, sys.executable, "-m", *arguments]


def environment() -> dict[str, str]:
    """That in which Python finds the program."""
    return {**os.environ, "PYTHONPATH": str(TESTS)}


def missing() -> str | None:
    """Why this machine cannot run the program; None if it can."""
    if sys.platform != "linux":
        return "it needs the namespaces of Linux"
    if os.geteuid() != 0:
        return "it needs root, for network namespaces and TUN devices"
    if absent := [name for name in _PROGRAMS if shutil.which(name) is None]:
        return f"missing programs: {', '.join(absent)}"
    tried = subprocess.run(
        isolated(["chaos.probe"]),
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_CHECK_SECONDS,
    )
    if tried.returncode:
        return f"namespaces, TUN devices or mounts do not work: {(tried.stdout.splitlines() or ['?'])[-1]}"
    return None


def new_network() -> int:
    """Move this thread into a new network namespace, and return a descriptor of the namespace."""
    if _libc.unshare(CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "unshare of the network")
    return this_network()


def this_network() -> int:
    return os.open("/proc/self/ns/net", os.O_RDONLY)


def enter_network(descriptor: int) -> None:
    """Move this thread into the network namespace."""
    if _libc.setns(descriptor, CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "setns of the network")


_libc = ctypes.CDLL(None, use_errno=True)
