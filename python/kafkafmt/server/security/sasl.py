"""The server's side of SASL on one connection, without I/O (KIP-43, KIP-152).

    session = SaslSession(users, accept)
    session.allows(api_key)        whether the client may use this API yet
    session.handlers()             the handlers of SaslHandshake and SaslAuthenticate
    session.expects_bare_token     the next frame is a token without a Kafka header, for session.token()
    session.failure                why the connection must be closed after the answer is sent
    session.principal              the authenticated user: `User:alice`

A client announces a mechanism with SaslHandshake. From version 1 on its tokens come in SaslAuthenticate. Clients from
before KIP-152 send bare tokens, with only a length before them. The answers are Kafka's: error codes if the response
has a field for one, else the connection is closed. The reason is only logged.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

from kafka.errors import IllegalSaslStateError, SaslAuthenticationFailedError, UnsupportedSaslMechanismError
from kafka.protocol.api_key import ApiKey
from kafka.protocol.metadata import ApiVersionsRequest
from kafka.protocol.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)

from kafkafmt.server.request import Handler, Message, Request
from kafkafmt.server.security.exchanges import AuthenticationError, Exchange, begin_exchange
from kafkafmt.server.security.users import UncheckedUsers, Users

# Called with a user whose exchange has succeeded, and the password if the mechanism has told it. Raises
# AuthenticationError for a user who may not connect after all.
Accept: TypeAlias = Callable[[str, str | None], Awaitable[None]]

# The APIs that a client may use before it is authenticated, and the size of its frames: those of these APIs are small,
# and so are tokens.
OPEN_API_KEYS = frozenset(
    request.API_KEY for request in (ApiVersionsRequest, SaslHandshakeRequest, SaslAuthenticateRequest)
)
MAX_OPEN_FRAME_BYTES = 16 * 1024
# Seconds before the connection of a client that failed is closed, as Kafka's
# `connection.failed.authentication.delay.ms`: some clients do not read an answer if the close follows at once.
FAILED_AUTHENTICATION_DELAY = 0.1


class SaslSession:
    """The SASL state of one connection.

    A second exchange is refused: sessions do not expire, so there is no re-authentication (KIP-368).
    """

    def __init__(self, users: Users | UncheckedUsers, accept: Accept | None = None) -> None:
        self.principal: str | None = None
        self.failure: str | None = None
        self.expects_bare_token = False
        self._users = users
        self._accept = accept
        self._mechanism = ""
        self._exchange: Exchange | None = None

    def allows(self, api_key: int) -> bool:
        """Return whether the client may send requests of this API now."""
        return self.principal is not None or api_key in OPEN_API_KEYS

    def handlers(self) -> dict[int, Handler]:
        """Return the handlers by API key."""
        return {
            ApiKey.SaslHandshake: self._handshake,
            ApiKey.SaslAuthenticate: self._authenticate,
        }

    async def token(self, token: bytes) -> bytes | None:
        """Return the answer to a bare token, which is sent bare as well; None if it failed: `failure` says why."""
        try:
            return await self._respond(token)
        except AuthenticationError as error:
            self.failure = str(error)
            return None

    async def _handshake(self, request: Request) -> Message:
        error_code = 0
        mechanism = request.body.mechanism
        if self.principal is not None or self._exchange is not None:
            error_code = self._refuse_state("SaslHandshake")
        elif mechanism not in self._users.mechanisms:
            error_code = UnsupportedSaslMechanismError.errno
            self.failure = (
                f"SASL mechanism: expected one of {', '.join(self._users.mechanisms)}, found {mechanism!r}"
            )
        else:
            self._mechanism = mechanism
            self._exchange = begin_exchange(mechanism, self._users)
            self.expects_bare_token = request.version == 0
        return SaslHandshakeResponse[request.version](
            error_code=error_code, mechanisms=list(self._users.mechanisms)
        )

    async def _authenticate(self, request: Request) -> Message:
        response = SaslAuthenticateResponse[request.version]
        if self._exchange is None:
            error_code = self._refuse_state("SaslAuthenticate")
            return response(
                error_code=error_code, error_message="SaslAuthenticate without SaslHandshake", auth_bytes=b""
            )
        try:
            answer = await self._respond(bytes(request.body.auth_bytes))
        except AuthenticationError as error:
            self.failure = str(error)
            return response(
                error_code=SaslAuthenticationFailedError.errno,
                error_message=f"Authentication failed: invalid credentials for {self._mechanism}",
                auth_bytes=b"",
            )
        return response(error_code=0, error_message=None, auth_bytes=answer, session_lifetime_ms=0)

    def _refuse_state(self, api: str) -> int:
        """Return ILLEGAL_SASL_STATE for an unexpected API. Before authentication this also ends the connection."""
        if self.principal is None:
            self.failure = f"unexpected {api}"
        return int(IllegalSaslStateError.errno)

    async def _respond(self, token: bytes) -> bytes:
        exchange = self._exchange
        if exchange is None:
            raise AuthenticationError("a token is not expected")
        answer = exchange.respond(token)
        if exchange.user is not None:
            if self._accept is not None:
                await self._accept(exchange.user, exchange.password)
            self.principal = f"User:{exchange.user}"
            self.expects_bare_token = False
            self._exchange = None
        return answer


def refusing_handlers() -> dict[int, Handler]:
    """Return SASL handlers for an endpoint without users. They answer with an error, and do not end the connection."""

    async def refuse_handshake(request: Request) -> Message:
        return SaslHandshakeResponse[request.version](error_code=IllegalSaslStateError.errno, mechanisms=[])

    async def refuse_authenticate(request: Request) -> Message:
        return SaslAuthenticateResponse[request.version](
            error_code=IllegalSaslStateError.errno,
            error_message="SASL is not in use here",
            auth_bytes=b"",
        )

    return {
        ApiKey.SaslHandshake: refuse_handshake,
        ApiKey.SaslAuthenticate: refuse_authenticate,
    }
