"""Certificates for loopback, as PEM files: a server's, a client's, and those of their authorities."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import trustme


@dataclass(frozen=True)
class Certificates:
    """The server's and the client's certificates are each signed by an authority of its own."""

    server_ca: Path
    server: Path
    server_key: Path
    client_ca: Path
    client: Path
    client_key: Path


def make_certificates(folder: Path) -> Certificates:
    server_ca, server, server_key = _signed(folder / "server", "127.0.0.1", "localhost")
    client_ca, client, client_key = _signed(folder / "client", "consumer@example.org")
    return Certificates(server_ca, server, server_key, client_ca, client, client_key)


def _signed(folder: Path, *identities: str) -> tuple[Path, Path, Path]:
    folder.mkdir()
    authority = trustme.CA()
    issued = authority.issue_cert(*identities)
    ca, chain, key = (folder / name for name in ("ca.pem", "chain.pem", "key.pem"))
    authority.cert_pem.write_to_path(str(ca))
    for pem in issued.cert_chain_pems:
        pem.write_to_path(str(chain), append=True)
    issued.private_key_pem.write_to_path(str(key))
    return ca, chain, key
