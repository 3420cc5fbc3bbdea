"""TLS: the settings of kafka-python's clients as one SSL context, and the handshake of connections of our own."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Mapping
from typing import Any

from kafkafmt._util.tls_files import TlsError, load_authorities, load_identity, load_revocations

_PROTOCOLS = ("SSL", "SASL_SSL")
_EXPECTED_KEY = "a key without a password, or ssl.key.password (ssl_password)"


def uses_tls(config: Mapping[str, Any]) -> bool:
    """Return whether the option `security_protocol` asks for TLS."""
    return config.get("security_protocol") in _PROTOCOLS


def ssl_context(config: Mapping[str, Any]) -> ssl.SSLContext | None:
    """Return the context that the ssl_ options describe; None without TLS. Options may be missing.

    Raises OSError for a file that cannot be read, and TlsError for one that has no certificate or key.
    """
    if not uses_tls(config):
        return None
    if config.get("ssl_context") is not None:
        given: ssl.SSLContext = config["ssl_context"]
        return given
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = config.get("ssl_check_hostname", True)
    if config.get("ssl_ciphers"):
        context.set_ciphers(config["ssl_ciphers"])
    if config.get("ssl_cafile"):
        load_authorities(context, config["ssl_cafile"])
    else:
        context.load_default_certs()
    if config.get("ssl_certfile"):
        key, password = config.get("ssl_keyfile"), config.get("ssl_password") or ""
        load_identity(context, config["ssl_certfile"], key, _EXPECTED_KEY, password)
    if config.get("ssl_crlfile"):
        load_revocations(context, config["ssl_crlfile"])
    return context


def check_tls_files(config: Mapping[str, Any]) -> None:
    """Raise TlsError if a file of the ssl_ options is missing or cannot be used. Options may be missing."""
    try:
        ssl_context(config)
    except OSError as error:
        raise TlsError(f"{error.filename}: {error.strerror}") from None


async def handshake(
    loop: asyncio.AbstractEventLoop, context: ssl.SSLContext, connected: socket.socket, host: str
) -> ssl.SSLSocket:
    """Return a connected, non-blocking socket with TLS, after the handshake. Closes the socket if that fails."""
    wrapped = context.wrap_socket(connected, server_hostname=host.rstrip("."), do_handshake_on_connect=False)
    try:
        while True:
            try:
                wrapped.do_handshake()
                return wrapped
            except ssl.SSLWantReadError:
                await _wait(loop, wrapped, loop.add_reader, loop.remove_reader)
            except ssl.SSLWantWriteError:
                await _wait(loop, wrapped, loop.add_writer, loop.remove_writer)
    except BaseException:
        wrapped.close()
        raise


async def _wait(
    loop: asyncio.AbstractEventLoop,
    waiting: ssl.SSLSocket,
    add: Callable[..., object],
    remove: Callable[..., object],
) -> None:
    """Wait until the socket can be read or written."""
    can_continue: asyncio.Future[None] = loop.create_future()

    def proceed() -> None:
        if not can_continue.done():
            can_continue.set_result(None)

    add(waiting, proceed)
    try:
        await can_continue
    finally:
        remove(waiting)
