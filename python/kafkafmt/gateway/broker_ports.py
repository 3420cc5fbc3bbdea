"""Ports that stand for one broker each, for clients that check that brokers have different addresses.

A broker's port follows from its node id alone: the first port, and the id modulo the number of ports. So all gateways
and workers agree, and the ports stay when brokers come and go. Consecutive ids have different ports.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class BrokerPorts:
    """The ports from `first` to `last`."""

    first: int
    last: int

    @classmethod
    def parse(cls, text: str) -> BrokerPorts:
        """Parse FIRST-LAST. Raises ValueError, which says what is expected."""
        first, _, last = text.partition("-")
        if first.isascii() and first.isdigit() and last.isascii() and last.isdigit():
            ports = cls(int(first), int(last))
            if 0 < ports.first <= ports.last <= 65535:
                return ports
        raise ValueError(f"expected FIRST-LAST, ports from 1 to 65535, found {text!r}")

    @property
    def all(self) -> range:
        """All ports."""
        return range(self.first, self.last + 1)

    def port(self, node_id: int, nodes: Iterable[int]) -> int | None:
        """Return the port of a broker; None if a broker with a lower id has it. nodes: the ids of all brokers."""
        port = self._port(node_id)
        return port if self.node(port, nodes) == node_id else None

    def node(self, port: int, nodes: Iterable[int]) -> int | None:
        """Return the broker that a port stands for; None for none of these."""
        return min((node for node in nodes if node >= 0 and self._port(node) == port), default=None)

    def _port(self, node_id: int) -> int:
        return self.first + node_id % len(self.all)

    def __str__(self) -> str:
        return f"{self.first}-{self.last}"
