"""TLS: the listener's certificate, and the certificates that clients must show."""

from __future__ import annotations

import ssl

from kafkafmt._util.tls_files import load_authorities, load_identity
from kafkafmt.server.options import TlsOptions


def tls_context(options: TlsOptions) -> ssl.SSLContext:
    """Return a TLS context for the listener: TLS 1.2 and later. Raises TlsError and OSError.

    If the file of `client_ca` also has revocation lists, certificates of clients are checked with them.
    """
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    load_identity(context, options.certificate, options.key, "a key without a passphrase")
    if options.client_ca is not None:
        load_authorities(context, options.client_ca, has_revocations=True)
        context.verify_mode = ssl.CERT_REQUIRED
    return context
