"""TLS: the settings of kafka-python's clients as one SSL context, and the handshake of connections of our own."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from kafkafmt._util.user_errors import UserError

_PROTOCOLS = ("SSL", "SASL_SSL")
_FILES = ("ssl_cafile", "ssl_certfile", "ssl_keyfile", "ssl_crlfile")
_OPTIONAL = (*_FILES, "ssl_password")


class TlsFileError(UserError, ValueError):
    """A file of certificates or of a key has none that can be used."""


def uses_tls(config: Mapping[str, Any]) -> bool:
    """Return whether the option `security_protocol` asks for TLS."""
    return config["security_protocol"] in _PROTOCOLS


def ssl_context(config: Mapping[str, Any]) -> ssl.SSLContext | None:
    """Return the context that the ssl_ options describe; None without TLS.

    Raises OSError for a file that cannot be read, and TlsFileError for one that has no certificate or key.
    """
    if not uses_tls(config):
        return None
    if config["ssl_context"] is not None:
        given: ssl.SSLContext = config["ssl_context"]
        return given
    files = [config[name] for name in _FILES if config.get(name)]
    for name in files:
        with Path(name).open("rb"):  # errors of the SSL context do not name the file
            pass
    try:
        return _new_context(config)
    except ssl.SSLError as error:
        reason = error.reason or error
        raise TlsFileError(
            f"{', '.join(map(str, files))}: {reason}: expected certificates and keys in PEM form"
        ) from None


def check_tls_files(config: Mapping[str, Any]) -> None:
    """Raise TlsFileError if a file of the ssl_ options is missing or cannot be used. Other options may be missing.

    kafka-python reads the files when it connects, and its errors do not name them.
    """
    if uses_tls({"security_protocol": "PLAINTEXT", **config}) and any(map(config.get, _FILES)):
        try:
            ssl_context(
                {"ssl_context": None, "ssl_check_hostname": True, **dict.fromkeys(_OPTIONAL), **config}
            )
        except OSError as error:
            raise TlsFileError(f"{error.filename}: {error.strerror}") from None


def _new_context(config: Mapping[str, Any]) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = config["ssl_check_hostname"]
    if config.get("ssl_ciphers"):
        context.set_ciphers(config["ssl_ciphers"])
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
