"""The server's side of the SASL mechanisms PLAIN and SCRAM: exchanges of tokens, without I/O."""

from __future__ import annotations

from typing import Protocol

from scramp import ScramException, ScramMechanism
from scramp.core import Nonce

from kafkafmt.server.security.users import PLAIN, UncheckedUsers, Users


class AuthenticationError(Exception):
    """Authentication failed. The message is for the log: it may contain more than the client may know."""


class Exchange(Protocol):
    """One exchange of tokens. user: None until it has succeeded; no token is expected after that.

    password: the user's, if the mechanism has told it.
    """

    user: str | None
    password: str | None

    def respond(self, token: bytes) -> bytes:
        """Return the answer to the client's next token. Raises AuthenticationError, which ends the exchange."""


def begin_exchange(mechanism: str, users: Users | UncheckedUsers) -> Exchange:
    """Begin the SASL exchange of a mechanism, which is one of `users.mechanisms`."""
    if mechanism == PLAIN or isinstance(users, UncheckedUsers):
        return PlainExchange(users)
    return ScramExchange(mechanism, users)


class PlainExchange:
    """PLAIN (RFC 4616): one token, which contains the password."""

    def __init__(self, users: Users | UncheckedUsers) -> None:
        self.user: str | None = None
        self.password: str | None = None
        self._users = users

    def respond(self, token: bytes) -> bytes:
        """Check the client's token. Returns the response. Raises AuthenticationError."""
        try:
            authorization_id, name, password = token.decode().split("\0")
        except ValueError:
            raise AuthenticationError("a PLAIN token is not three UTF-8 strings separated by NUL") from None
        if not self._users.has_password(name, password):
            raise AuthenticationError(f"wrong user or password: {name!r}")
        if authorization_id not in ("", name):
            raise AuthenticationError(f"{name!r} wants to act for {authorization_id!r}")
        self.user, self.password = name, password
        return b""


class ScramExchange:
    """SCRAM (RFC 5802, RFC 7677): two tokens, and each side proves that it knows the password.

    Channel binding and authorization as another user are not supported. As in Kafka, the nonce of the second token
    must end in the server's part, whatever precedes it: librdkafka before 2.6.1 sends its own part twice
    (librdkafka#4895). The server's part prevents the reuse of an old proof. The proof is verified with the nonce that
    was received.
    """

    def __init__(self, mechanism: str, users: Users, nonce: str | None = None) -> None:
        self.user: str | None = None
        self.password: str | None = None
        self._mechanism = mechanism
        self._users = users
        self._claimed: str | None = None
        self._server = ScramMechanism(mechanism).make_server(self._credential, s_nonce=nonce)

    def respond(self, token: bytes) -> bytes:
        """Return the response to the client's token. Raises AuthenticationError."""
        try:
            return self._respond(token.decode()).encode()
        except (ScramException, ValueError) as error:
            who = "" if self._claimed is None else f"{self._claimed!r}: "
            raise AuthenticationError(f"{who}{error}") from None

    def _respond(self, message: str) -> str:
        answer: str
        if self._claimed is None:
            self._server.set_client_first(message)
            answer = self._server.get_server_first()
        else:
            self._accept_nonce(message)
            self._server.set_client_final(message)
            answer = self._server.get_server_final()
            self.user = self._claimed
        return answer

    def _accept_nonce(self, message: str) -> None:
        """Make scramp, which expects the nonce that it sent, accept the client's if that ends in the server's part."""
        nonce = next((field[2:] for field in message.split(",") if field.startswith("r=")), "")
        if nonce.endswith(str(self._server.s_nonce)):
            self._server.nonce = Nonce(nonce)

    def _credential(self, name: str) -> tuple[bytes, bytes, bytes, int]:
        self._claimed = name
        found = self._users.scram_credential(name, self._mechanism)
        return found.salt, found.stored_key, found.server_key, found.iterations
