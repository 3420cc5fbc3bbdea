"""TLS: the settings of kafka-python's clients as one SSL context, and the handshake of connections of our own."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from kafkafmt._util.tls_files import TlsError, load_authorities, load_identity, load_revocations

log = logging.getLogger(__name__)

_PROTOCOLS = ("SSL", "SASL_SSL")
# The options that name files, and the others of TLS.
_FILES = ("ssl_cafile", "ssl_certfile", "ssl_keyfile", "ssl_crlfile")
_OTHERS = ("ssl_check_hostname", "ssl_ciphers", "ssl_password")
_EXPECTED_KEY = "a key without a password, or ssl.key.password (ssl_password)"


def uses_tls(config: Mapping[str, Any]) -> bool:
    """Return whether the option `security_protocol` asks for TLS."""
    return config.get("security_protocol") in _PROTOCOLS


class TlsContext(Protocol):
    """Makes sockets of TLS, as `ssl.SSLContext` does."""

    def wrap_socket(
        self, sock: socket.socket, *, server_hostname: str | None, do_handshake_on_connect: bool
    ) -> ssl.SSLSocket:
        """Return a socket with TLS."""


class FileContext:
    """The context of the ssl_ options. It reads their files again for the first connection after one has changed.

    If they cannot be used then, as while they are replaced one after another, it keeps what it has read before, and
    warns.

    Raises as `ssl_context`.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._options = {name: config.get(name) for name in (*_FILES, *_OTHERS)}
        versions = self._found_versions()
        # One attribute: if several threads read the files again, no context gets the versions of another one.
        self._used = _read(self._options), versions
        self._failure: str | None = None  # the last one that was warned of

    def wrap_socket(
        self, sock: socket.socket, *, server_hostname: str | None, do_handshake_on_connect: bool
    ) -> ssl.SSLSocket:
        """Return a socket with TLS, as `ssl.SSLContext.wrap_socket` does."""
        return self._current().wrap_socket(
            sock, server_hostname=server_hostname, do_handshake_on_connect=do_handshake_on_connect
        )

    def _current(self) -> ssl.SSLContext:
        """Return the context of the files as they are now. They are read if they have changed."""
        versions = self._found_versions()
        context, known = self._used
        if versions == known:
            return context
        try:
            context = _read(self._options)
        except (OSError, TlsError) as error:
            if str(error) != self._failure:
                log.warning(
                    "TLS files have changed, and cannot be used; those read before are kept: %s", error
                )
            self._failure = str(error)
            if isinstance(
                error, OSError
            ):  # it may go away without another change, as a lack of descriptors does
                return context
        else:
            self._failure = None
        self._used = context, versions
        return context

    def _found_versions(self) -> list[tuple[int, ...] | None]:
        """Return what changes with each file: its number, size and times. None for a file that is not there."""
        versions: list[tuple[int, ...] | None] = []
        for path in filter(None, (self._options[name] for name in _FILES)):
            try:
                found = Path(path).stat()
            except OSError:
                versions.append(None)
            else:
                versions.append((found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns))
        return versions


def ssl_context(config: Mapping[str, Any]) -> TlsContext | None:
    """Return the context that the ssl_ options describe; None without TLS. Options may be missing.

    Raises OSError for a file that cannot be read, and TlsError for one that has no certificate or key.
    """
    if not uses_tls(config):
        return None
    given: TlsContext | None = config.get("ssl_context")
    return FileContext(config) if given is None else given


def _read(options: Mapping[str, Any]) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    checks_hostname = options["ssl_check_hostname"]
    context.check_hostname = checks_hostname is None or bool(checks_hostname)
    if options["ssl_ciphers"]:
        try:
            context.set_ciphers(options["ssl_ciphers"])
        except ssl.SSLError:
            raise TlsError(
                f"ssl.ciphers: expected names of OpenSSL, found {options['ssl_ciphers']!r}"
            ) from None
    if options["ssl_cafile"]:
        load_authorities(context, options["ssl_cafile"])
    else:
        context.load_default_certs()
    if options["ssl_certfile"]:
        key, password = options["ssl_keyfile"], options["ssl_password"] or ""
        load_identity(context, options["ssl_certfile"], key, _EXPECTED_KEY, password)
    if options["ssl_crlfile"]:
        load_revocations(context, options["ssl_crlfile"])
    return context


def check_tls_files(config: Mapping[str, Any]) -> None:
    """Raise TlsError if a file of the ssl_ options is missing or cannot be used. Options may be missing."""
    try:
        ssl_context(config)
    except OSError as error:
        raise TlsError(f"{error.filename}: {error.strerror}") from None


async def handshake(
    loop: asyncio.AbstractEventLoop, context: TlsContext, connected: socket.socket, host: str
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
