"""Certificates for loopback, as PEM files: a server's, a client's, and those of their authorities."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path

import trustme
from cryptography import x509
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)


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


def encrypted_key(key: Path, password: str, path: Path) -> Path:
    """Write a key, encrypted, to `path`."""
    form = (Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(password.encode()))
    path.write_bytes(load_pem_private_key(key.read_bytes(), None).private_bytes(*form))
    return path


def revocation_list(ca: Path, *revoked: Path) -> bytes:
    """The list of an authority with these certificates, which is valid for a day."""
    now = datetime.now(timezone.utc)
    authority = x509.load_pem_x509_certificate(ca.read_bytes())
    builder = (
        x509.CertificateRevocationListBuilder()
        .issuer_name(authority.subject)
        .last_update(now - timedelta(days=1))
        .next_update(now + timedelta(days=1))
    )
    for path in revoked:
        number = x509.load_pem_x509_certificate(path.read_bytes()).serial_number
        entry = x509.RevokedCertificateBuilder().serial_number(number).revocation_date(now).build()
        builder = builder.add_revoked_certificate(entry)
    key = load_pem_private_key(ca.with_name("ca.key").read_bytes(), None)
    return builder.sign(key, SHA256()).public_bytes(Encoding.PEM)  # type: ignore[arg-type]


def _signed(folder: Path, *identities: str) -> tuple[Path, Path, Path]:
    folder.mkdir()
    authority = trustme.CA()
    issued = authority.issue_cert(*identities)
    ca, chain, key = (folder / name for name in ("ca.pem", "chain.pem", "key.pem"))
    authority.cert_pem.write_to_path(str(ca))
    authority.private_key_pem.write_to_path(str(ca.with_name("ca.key")))
    for pem in issued.cert_chain_pems:
        pem.write_to_path(str(chain), append=True)
    issued.private_key_pem.write_to_path(str(key))
    return ca, chain, key
