"""TLS: the listener's certificate, and the certificates that clients must show."""

from __future__ import annotations

import os
import ssl
from typing import NoReturn

from kafkafmt._util.files import open_regular
from kafkafmt._util.user_errors import UserError
from kafkafmt.server.options import TlsOptions


class TlsError(UserError, ValueError):
    """A certificate or a key is invalid. The message is one line that names the file."""


def tls_context(options: TlsOptions) -> ssl.SSLContext:
    """Return a TLS context for the listener: TLS 1.2 and later. Raises TlsError and OSError."""
    for path in filter(None, (options.certificate, options.key, options.client_ca)):
        os.close(open_regular(path))  # errors of the SSL context do not name the file
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION

    def refuse() -> NoReturn:  # without this function, OpenSSL asks on the terminal
        raise TlsError(f"{options.key}: expected a key without a passphrase, found an encrypted one")

    try:
        context.load_cert_chain(options.certificate, options.key, password=refuse)
    except ssl.SSLError as error:
        mismatch = error.reason == "KEY_VALUES_MISMATCH"
        reason = (
            "the key is not that of the certificate" if mismatch else "no certificate and key in PEM form"
        )
        raise TlsError(f"{options.certificate} and {options.key}: {reason}") from None
    if options.client_ca is not None:
        try:
            context.load_verify_locations(options.client_ca)
        except ssl.SSLError:
            raise TlsError(f"{options.client_ca}: no certificates in PEM form") from None
        context.verify_mode = ssl.CERT_REQUIRED
    return context
