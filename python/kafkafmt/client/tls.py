"""The TLS settings of kafka-python's clients as one SSL context, for its connections and for our own."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Any

_PROTOCOLS = ("SSL", "SASL_SSL")


def uses_tls(config: Mapping[str, Any]) -> bool:
    """Return whether the option `security_protocol` asks for TLS."""
    return config["security_protocol"] in _PROTOCOLS


def ssl_context(config: Mapping[str, Any]) -> ssl.SSLContext | None:
    """Return the context that the ssl_ options describe; None without TLS.

    Raises OSError for a file that cannot be read, and ssl.SSLError for one that has no certificate or key.
    """
    if not uses_tls(config):
        return None
    if config["ssl_context"] is not None:
        given: ssl.SSLContext = config["ssl_context"]
        return given
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = config["ssl_check_hostname"]
    if config["ssl_cafile"]:
        context.load_verify_locations(config["ssl_cafile"])
    else:
        context.load_default_certs()
    if config["ssl_certfile"]:
        context.load_cert_chain(config["ssl_certfile"], config["ssl_keyfile"], config["ssl_password"])
    if config["ssl_crlfile"]:
        context.load_verify_locations(config["ssl_crlfile"])
        context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
    return context
