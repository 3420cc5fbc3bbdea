"""Load certificates, keys and revocation lists in PEM form into an SSL context. Errors name the file and its fault.

OpenSSL's own errors do not name a file. For the password of an encrypted key it asks on the terminal, unless it gets
a function that answers.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable

from kafkafmt._util.files import open_regular
from kafkafmt._util.user_errors import UserError

_MISMATCHES = ("KEY_TYPE_MISMATCH", "KEY_VALUES_MISMATCH")

# The path of a file, as text or as an object.
PemFile = str | os.PathLike[str]
Password = str | bytes | bytearray | Callable[[], str | bytes | bytearray]


class TlsError(UserError, ValueError):
    """A certificate, a key or a revocation list is invalid. The message is one line that names the file."""


def load_identity(
    context: ssl.SSLContext,
    certificate: PemFile,
    key: PemFile | None,
    expected_key: str,
    password: Password = "",
) -> None:
    """Load a certificate with its chain, and its key. Raises TlsError and OSError.

    key: None if the file of the certificate has the key, too. expected_key: for the error of an encrypted key without
    a password. password: of an encrypted key, or a function that returns it.
    """
    _open_each(certificate, key)
    is_encrypted = False

    def answer() -> str | bytes | bytearray:
        nonlocal is_encrypted
        is_encrypted = True
        if not password:
            raise TlsError(f"{key or certificate}: expected {expected_key}, found an encrypted one")
        return password() if callable(password) else password

    try:
        context.load_cert_chain(certificate, key, password=answer)
    except ssl.SSLError as error:
        names = f"{certificate} and {key}" if key else f"{certificate}"
        if error.reason in _MISMATCHES:
            raise TlsError(f"{names}: the key is not that of the certificate") from None
        if is_encrypted:
            raise TlsError(f"{key or certificate}: the password is not that of the key") from None
        raise TlsError(f"{names}: no certificate and key in PEM form") from None
    except TlsError:
        raise
    except ValueError as error:  # a password of more than 1,024 bytes
        raise TlsError(f"{key or certificate}: {error}") from None


def load_authorities(context: ssl.SSLContext, path: PemFile, *, has_revocations: bool = False) -> None:
    """Load the certificates of authorities. Raises TlsError and OSError.

    has_revocations: whether lists of revoked certificates in the file are used, as those of `load_revocations`.
    """
    _load(context, path, "x509", "certificates")
    if has_revocations and context.cert_store_stats()["crl"]:
        context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF


def load_revocations(context: ssl.SSLContext, path: PemFile) -> None:
    """Load a list of revoked certificates, and refuse peers whose certificate is on it. Raises TlsError and OSError.

    OpenSSL then also refuses a peer if there is no valid list of the authority that signed its certificate.
    """
    _load(context, path, "crl", "revocation list")
    context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF


def _load(context: ssl.SSLContext, path: PemFile, kind: str, expected: str) -> None:
    _open_each(path)
    found = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        found.load_verify_locations(path)
        context.load_verify_locations(path)
    except ssl.SSLError:
        raise TlsError(f"{path}: no {expected} in PEM form") from None
    if not found.cert_store_stats()[kind]:
        raise TlsError(f"{path}: no {expected} in PEM form")


def _open_each(*paths: PemFile | None) -> None:
    for path in paths:
        if path:
            os.close(open_regular(path))  # errors of the SSL context do not name the file
