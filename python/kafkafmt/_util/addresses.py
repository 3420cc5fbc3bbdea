"""Network addresses as text."""

from __future__ import annotations

import socket


def host_and_port(host: str, port: int) -> str:
    """Return the text of an address: `127.0.0.1:9092`, `[::1]:9092`."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def address_family(host: str) -> socket.AddressFamily:
    """Return the family of the first address of a host. Raises OSError if it has none."""
    family: socket.AddressFamily = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][0]
    return family
