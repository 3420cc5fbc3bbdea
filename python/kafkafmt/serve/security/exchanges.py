"""The exchanges of tokens that SASL mechanisms prescribe, the server's side, sans-IO: PLAIN and SCRAM."""

from __future__ import annotations

from typing import Protocol

from scramp import ScramException, ScramMechanism
from scramp.core import Nonce

from kafkafmt.serve.security.users import PLAIN, Users


class AuthenticationError(Exception):
    """A client is not who it says it is. The message is for the log: it may tell more than the client may know."""


class Exchange(Protocol):
    """One exchange of tokens. `user` is None until it has succeeded; no token is expected behind that."""

    user: str | None

    def respond(self, token: bytes) -> bytes:
        """The answer to the client's next token. Raises AuthenticationError, which ends the exchange."""


def begin_exchange(mechanism: str, users: Users) -> Exchange:
    return PlainExchange(users) if mechanism == PLAIN else ScramExchange(mechanism, users)


class PlainExchange:
    """RFC 4616: one token, with the password in it."""

    def __init__(self, users: Users) -> None:
        self.user: str | None = None
        self._users = users

    def respond(self, token: bytes) -> bytes:
        try:
            authorization_id, name, password = token.decode().split("\0")
        except ValueError:
            raise AuthenticationError("a PLAIN token is not three texts, parted by NUL") from None
        if not self._users.has_password(name, password):
            raise AuthenticationError(f"wrong user or password: {name!r}")
        if authorization_id not in ("", name):
            raise AuthenticationError(f"{name!r} wants to act for {authorization_id!r}")
        self.user = name
        return b""


class ScramExchange:
    """RFC 5802 and RFC 7677: two tokens, and each side proves that it knows the password.

    There is no channel binding, and no acting for others. As with Kafka, the nonce of the second token has to end in
    the server's part, whatever is in front of that: librdkafka before 2.6.1 has its own part there twice
    (librdkafka#4895). The server's part is what keeps an old proof from being used again, and the proof is held
    against the nonce as it came.
    """

    def __init__(self, mechanism: str, users: Users, nonce: str | None = None) -> None:
        self.user: str | None = None
        self._mechanism = mechanism
        self._users = users
        self._claimed: str | None = None
        self._server = ScramMechanism(mechanism).make_server(self._credential, s_nonce=nonce)

    def respond(self, token: bytes) -> bytes:
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
            self._take_nonce(message)
            self._server.set_client_final(message)
            answer = self._server.get_server_final()
            self.user = self._claimed
        return answer

    def _take_nonce(self, message: str) -> None:
        """Have scramp, which wants the nonce that it sent, expect the client's, where that ends as it should."""
        nonce = next((field[2:] for field in message.split(",") if field.startswith("r=")), "")
        if nonce.endswith(str(self._server.s_nonce)):
            self._server.nonce = Nonce(nonce)

    def _credential(self, name: str) -> tuple[bytes, bytes, bytes, int]:
        self._claimed = name
        found = self._users.scram_credential(name, self._mechanism)
        return found.salt, found.stored_key, found.server_key, found.iterations
