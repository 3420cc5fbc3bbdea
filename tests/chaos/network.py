"""Hosts: network namespaces of one address each, between which only the relay moves packets.

The program itself is a host, too: it is named OBSERVER, and its links are never disturbed.
"""

from __future__ import annotations

import fcntl
import json
import os
import struct
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from chaos.isolation import enter_network, new_network, this_network
from chaos.relay import Rule

if TYPE_CHECKING:
    from typing_extensions import Self

OBSERVER = "observer"
SUBNET = "10.77.0"
DEVICE = "tun0"
MTU = 9000
END_SECONDS = 10
TUNSETIFF = 0x400454CA
IFF_TUN, IFF_NO_PI = 0x1, 0x1000


class Network:
    """Hosts of these names, each with a TUN device of which the relay has the other end. A context manager."""

    def __init__(self, names: Sequence[str], seed: int) -> None:
        self.names = [*names, OBSERVER]
        self._seed = seed
        self._namespaces: dict[str, int] = {}
        self.packets: dict[str, int] = {}
        """How many were relayed, dropped and delayed, after the end."""

    def address(self, name: str) -> str:
        return f"{SUBNET}.{self.names.index(name) + 1}"

    def command(self, name: str, command: Sequence[str]) -> list[str]:
        """The command that runs a program on a host; the program keeps the process id."""
        if name == OBSERVER:
            return list(command)
        return ["nsenter", f"--net=/proc/{os.getpid()}/fd/{self._namespaces[name]}", "--", *command]

    def __enter__(self) -> Self:
        own, devices = this_network(), {}
        try:
            for name in self.names:
                if name == OBSERVER:
                    enter_network(own)
                else:
                    self._namespaces[name] = new_network()
                devices[name] = _device(self.address(name))
        finally:
            enter_network(own)
            os.close(own)
        hosts = [f"{name}={self.address(name)}:{devices[name]}" for name in self.names]
        self._relay = subprocess.Popen(
            [sys.executable, "-m", "chaos.relay", str(self._seed), *hosts],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=tuple(devices.values()),
        )
        for device in devices.values():
            os.close(device)
        self.set_rules([])
        return self

    def __exit__(self, *_: object) -> None:
        assert self._relay.stdin is not None
        try:
            said, _none = self._relay.communicate(timeout=END_SECONDS)  # it ends when its input does
        except subprocess.TimeoutExpired:
            self._relay.kill()
            said, _none = self._relay.communicate()
        counts = json.loads((said.splitlines() or [b"[0, 0, 0]"])[-1])
        self.packets = dict(zip(("relayed", "dropped", "delayed"), counts, strict=True))
        for descriptor in self._namespaces.values():
            os.close(descriptor)

    def set_rules(self, rules: Iterable[Rule]) -> None:
        """Replace all rules; they apply when this returns."""
        assert self._relay.stdin is not None
        assert self._relay.stdout is not None
        self._relay.stdin.write(json.dumps([asdict(rule) for rule in rules]).encode() + b"\n")
        self._relay.stdin.flush()
        if not self._relay.stdout.readline():
            raise RuntimeError("the relay has ended")


def _device(address: str) -> int:
    """Make the TUN device of this thread's network namespace, and return the relay's end of it."""
    descriptor = os.open("/dev/net/tun", os.O_RDWR)
    try:
        named = struct.pack("16sH22x", DEVICE.encode(), IFF_TUN | IFF_NO_PI)
        fcntl.ioctl(descriptor, TUNSETIFF, named)
        for settings in (
            f"addr add {address}/24 dev {DEVICE}",
            f"link set {DEVICE} mtu {MTU} txqueuelen 2000 up",
            "link set lo up",
        ):
            subprocess.run(["ip", *settings.split()], check=True, stdin=subprocess.DEVNULL)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
