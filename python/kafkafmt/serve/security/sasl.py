"""SASL on one connection, the server's side, sans-IO: who is there, by which exchange of tokens (KIP-43, KIP-152).

    session = SaslSession(users)
    session.allows(api_key)        whether the client may ask for this API yet
    session.handlers()             answer SaslHandshake and SaslAuthenticate
    session.expects_bare_token     the next frame is a token without a Kafka header, for session.token()
    session.failure                why the connection is to be closed, once the answer is sent
    session.principal              who is there: `User:alice`

A client announces a mechanism with SaslHandshake. From version 1 on its tokens come in SaslAuthenticate; clients of
the time before (KIP-152) send them bare, with a length alone in front. Kafka's answers are given: error codes where
there is a response that has room for one, else the connection is closed. What is wrong is for the log alone.
"""

from __future__ import annotations

from kafka.errors import IllegalSaslStateError, SaslAuthenticationFailedError, UnsupportedSaslMechanismError
from kafka.protocol.metadata import ApiVersionsRequest
from kafka.protocol.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)

from kafkafmt.serve.request import Handler, Message, Request
from kafkafmt.serve.security.exchanges import AuthenticationError, Exchange, begin_exchange
from kafkafmt.serve.security.users import Users

# What a client may ask for before it is known who it is, and how large its frames may be: those of these APIs are
# small, and so are tokens.
OPEN_API_KEYS = frozenset(
    request.API_KEY for request in (ApiVersionsRequest, SaslHandshakeRequest, SaslAuthenticateRequest)
)
MAX_OPEN_FRAME_BYTES = 16 * 1024
# In seconds, before the connection of a client that failed is closed, as Kafka's
# `connection.failed.authentication.delay.ms`: some clients do not look at an answer with the end right behind it.
FAILED_AUTHENTICATION_DELAY = 0.1


class SaslSession:
    """Whether the client of one connection has said who it is. Once it has, a second exchange is refused: there is
    no re-authentication (KIP-368) where sessions have no end."""

    def __init__(self, users: Users) -> None:
        self.principal: str | None = None
        self.failure: str | None = None
        self.expects_bare_token = False
        self._users = users
        self._mechanism = ""
        self._exchange: Exchange | None = None

    def allows(self, api_key: int) -> bool:
        return self.principal is not None or api_key in OPEN_API_KEYS

    def handlers(self) -> dict[int, Handler]:
        return {
            SaslHandshakeRequest.API_KEY: self._handshake,
            SaslAuthenticateRequest.API_KEY: self._authenticate,
        }

    def token(self, token: bytes) -> bytes | None:
        """The answer to a bare token, to be sent bare as well; None where there is none: `failure` says why."""
        try:
            return self._respond(token)
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
                f"the SASL mechanism {mechanism!r} is not among {', '.join(self._users.mechanisms)}"
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
            answer = self._respond(bytes(request.body.auth_bytes))
        except AuthenticationError as error:
            self.failure = str(error)
            return response(
                error_code=SaslAuthenticationFailedError.errno,
                error_message=f"Authentication failed: invalid credentials for {self._mechanism}",
                auth_bytes=b"",
            )
        return response(error_code=0, error_message=None, auth_bytes=answer, session_lifetime_ms=0)

    def _refuse_state(self, api: str) -> int:
        """Before authentication an API out of turn ends the connection; behind it, it is an error like others."""
        if self.principal is None:
            self.failure = f"{api} out of turn"
        return int(IllegalSaslStateError.errno)

    def _respond(self, token: bytes) -> bytes:
        if self._exchange is None:
            raise AuthenticationError("a token is not expected")
        answer = self._exchange.respond(token)
        if self._exchange.user is not None:
            self.principal = f"User:{self._exchange.user}"
            self.expects_bare_token = False
            self._exchange = None
        return answer


def refusing_handlers() -> dict[int, Handler]:
    """For an endpoint that everyone may use: there SASL is out of turn, which is no reason to close a connection."""

    async def refuse_handshake(request: Request) -> Message:
        return SaslHandshakeResponse[request.version](error_code=IllegalSaslStateError.errno, mechanisms=[])

    async def refuse_authenticate(request: Request) -> Message:
        return SaslAuthenticateResponse[request.version](
            error_code=IllegalSaslStateError.errno,
            error_message="SASL is not in use here",
            auth_bytes=b"",
        )

    return {
        SaslHandshakeRequest.API_KEY: refuse_handshake,
        SaslAuthenticateRequest.API_KEY: refuse_authenticate,
    }
