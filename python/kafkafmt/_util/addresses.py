"""Network addresses as text."""

from __future__ import annotations


def host_and_port(host: str, port: int) -> str:
    """Return the text of an address: `127.0.0.1:9092`, `[::1]:9092`."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
