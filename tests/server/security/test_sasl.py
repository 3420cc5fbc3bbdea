"""SASL on a connection, sans-IO: vectors of the RFCs, both ways to send tokens, and what is refused."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.errors import IllegalSaslStateError, SaslAuthenticationFailedError, UnsupportedSaslMechanismError
from kafka.protocol.metadata import ApiVersionsRequest, MetadataRequest
from kafka.protocol.sasl import SaslAuthenticateRequest, SaslHandshakeRequest
from scramp import ScramClient
from scramp.core import Nonce

from kafkafmt.server.request import Request
from kafkafmt.server.security.exchanges import AuthenticationError, PlainExchange, ScramExchange
from kafkafmt.server.security.sasl import SaslSession
from kafkafmt.server.security.users import SCRAM_HASHES, UncheckedUsers, Users, read_users

PLAIN_TOKEN = b"\0alice\0wonderland"
SALT = "W22ZaJ0SNY7soEsUEjb6gQ=="  # RFC 7677, section 3
RFC_7677_USER = (
    f"[user]\nSCRAM-SHA-256 = [salt={SALT},iterations=4096,"
    "stored_key=WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY=,"
    "server_key=wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU=]\n"
)


@pytest.fixture(scope="module")
def users(tmp_path_factory: pytest.TempPathFactory) -> Users:
    path = tmp_path_factory.mktemp("users") / "users.ini"
    path.write_text(f"[alice]\npassword = wonderland\n{RFC_7677_USER}")
    return read_users(path)


@pytest.fixture
def session(users: Users) -> SaslSession:
    return SaslSession(users)


def ask(session: SaslSession, body: Any) -> Any:
    """What the session answers to a request, after its way over the wire."""
    request = Request(body.API_KEY, body.API_VERSION, 1, "test", body, "127.0.0.1")
    answer = asyncio.run(session.handlers()[body.API_KEY](request))
    return type(answer).decode(answer.encode(), version=body.API_VERSION)


def handshake(session: SaslSession, mechanism: str = "PLAIN", version: int = 1) -> Any:
    return ask(session, SaslHandshakeRequest[version](mechanism=mechanism))


def authenticate(session: SaslSession, token: bytes, version: int = 2) -> Any:
    return ask(session, SaslAuthenticateRequest[version](auth_bytes=token))


def test_scram_exchange_when_fed_the_vector_of_rfc_7677_then_answers_as_it_says(users: Users) -> None:
    exchange = ScramExchange("SCRAM-SHA-256", users, nonce="%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0")
    nonce = b"rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    first = exchange.respond(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO")
    assert first == b"r=" + nonce + b",s=" + SALT.encode() + b",i=4096"
    assert exchange.user is None
    final = exchange.respond(b"c=biws,r=" + nonce + b",p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=")
    assert final == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    assert exchange.user == "user"


@pytest.mark.parametrize("mechanism", SCRAM_HASHES)
def test_scram_session_when_the_password_is_right_then_both_sides_know_each_other(
    session: SaslSession, mechanism: str
) -> None:
    client = ScramClient([mechanism], "alice", "wonderland")
    assert handshake(session, mechanism).error_code == 0
    client.set_server_first(authenticate(session, client.get_client_first().encode()).auth_bytes.decode())
    assert session.principal is None
    client.set_server_final(authenticate(session, client.get_client_final().encode()).auth_bytes.decode())
    assert session.principal == "User:alice"


@pytest.mark.parametrize(("name", "password"), [("alice", "wrong"), ("nobody", "wonderland")])
def test_scram_session_when_user_or_password_is_wrong_then_both_fail_at_the_proof(
    session: SaslSession, name: str, password: str
) -> None:
    client = ScramClient(["SCRAM-SHA-512"], name, password)
    handshake(session, "SCRAM-SHA-512")
    client.set_server_first(authenticate(session, client.get_client_first().encode()).auth_bytes.decode())
    answer = authenticate(session, client.get_client_final().encode())
    assert answer.error_code == SaslAuthenticationFailedError.errno
    assert answer.error_message == "Authentication failed: invalid credentials for SCRAM-SHA-512"
    assert session.principal is None
    assert session.failure is not None


@pytest.mark.parametrize(
    "first",
    [
        b"p=tls-unique,,n=alice,r=abc",
        b"p=tls-server-end-point,,n=alice,r=abc",
        b"n,a=admin,n=alice,r=abc",
        b"n,,m=x,n=alice,r=abc",
        b"n,,n=alice",
        b"n,,n=al=ice,r=abc",
        b"",
        b"\xff",
    ],
    ids=[
        "channel binding",
        "end point",
        "other user",
        "extension",
        "no nonce",
        "escape",
        "empty",
        "not UTF-8",
    ],
)
def test_scram_exchange_when_the_first_token_is_not_to_be_had_then_fails(users: Users, first: bytes) -> None:
    with pytest.raises(AuthenticationError):
        ScramExchange("SCRAM-SHA-256", users).respond(first)


@pytest.mark.parametrize("field", ["c=eSws", "r=other", "p=AAAA"], ids=["binding", "nonce", "proof"])
def test_scram_exchange_when_the_final_token_is_changed_then_fails(users: Users, field: str) -> None:
    exchange, client = (
        ScramExchange("SCRAM-SHA-256", users),
        ScramClient(["SCRAM-SHA-256"], "alice", "wonderland"),
    )
    client.set_server_first(exchange.respond(client.get_client_first().encode()).decode())
    fields = client.get_client_final().split(",")
    changed = ",".join(field if part[0] == field[0] else part for part in fields)
    with pytest.raises(AuthenticationError):
        exchange.respond(changed.encode())
    assert exchange.user is None


def answer_with_nonce(users: Users, nonce_of: Callable[[Nonce, Nonce], Nonce]) -> ScramExchange:
    """An exchange behind a proof that is right for the nonce which a client made of its own and the server's."""
    exchange = ScramExchange("SCRAM-SHA-256", users)
    client = ScramClient(["SCRAM-SHA-256"], "alice", "wonderland")
    client.set_server_first(exchange.respond(client.get_client_first().encode()).decode())
    client.nonce = nonce_of(client.c_nonce, client.nonce)
    client.set_server_final(exchange.respond(client.get_client_final().encode()).decode())
    return exchange


def test_scram_exchange_when_the_client_repeats_its_nonce_as_librdkafka_did_then_both_sides_know_each_other(
    users: Users,
) -> None:
    assert answer_with_nonce(users, lambda own, both: own + both).user == "alice"


@pytest.mark.parametrize(
    "nonce_of",
    [
        lambda own, both: own,
        lambda own, both: Nonce(str(both)[:-1]),
        lambda own, both: Nonce(str(both).removeprefix(str(own))[1:]),
        lambda own, both: both + own,
        lambda own, both: Nonce.create(),
    ],
    ids=["none", "cut off", "its end alone", "something behind it", "another"],
)
def test_scram_exchange_when_the_servers_part_of_the_nonce_is_not_whole_then_fails(
    users: Users, nonce_of: Callable[[Nonce, Nonce], Nonce]
) -> None:
    with pytest.raises(AuthenticationError):
        answer_with_nonce(users, nonce_of)


@given(
    tokens=st.lists(
        st.binary(max_size=60) | st.text("n,=arcp2CDé\0", max_size=30).map(str.encode), max_size=3
    )
)
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
def test_session_when_tokens_are_arbitrary_then_nobody_is_let_in(
    users: Users, mechanism: str, tokens: list[bytes]
) -> None:
    session = SaslSession(users)
    handshake(session, mechanism, version=0)
    for token in tokens:
        asyncio.run(session.token(token))
    assert session.principal is None


@pytest.mark.parametrize("version", [0, 1, 2])
def test_plain_session_when_the_password_is_right_then_the_client_is_known(
    session: SaslSession, version: int
) -> None:
    answer = handshake(session)
    assert answer.mechanisms == ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]
    assert not session.expects_bare_token
    answer = authenticate(session, PLAIN_TOKEN, version)
    assert (answer.error_code, answer.error_message, bytes(answer.auth_bytes)) == (0, None, b"")
    assert session.principal == "User:alice"
    assert session.failure is None


@pytest.mark.parametrize(
    "token",
    [b"\0alice\0wrong", b"\0nobody\0x", b"admin\0alice\0wonderland", b"alice\0wonderland", b"\xff\0a\0b"],
)
def test_plain_exchange_when_the_token_is_wrong_then_fails(users: Users, token: bytes) -> None:
    exchange = PlainExchange(users)
    with pytest.raises(AuthenticationError):
        exchange.respond(token)
    assert exchange.user is None


def test_handshake_v0_then_tokens_are_bare_until_the_client_is_known(session: SaslSession) -> None:
    handshake(session, version=0)
    assert session.expects_bare_token
    assert asyncio.run(session.token(PLAIN_TOKEN)) == b""
    assert session.principal == "User:alice"
    assert not session.expects_bare_token


def test_bare_token_when_wrong_then_there_is_no_answer(session: SaslSession) -> None:
    handshake(session, version=0)
    assert asyncio.run(session.token(b"\0alice\0wrong")) is None
    assert session.failure == "wrong user or password: 'alice'"


def test_mechanism_when_not_there_then_those_that_are_there_are_named(session: SaslSession) -> None:
    answer = handshake(session, "GSSAPI")
    assert answer.error_code == UnsupportedSaslMechanismError.errno
    assert answer.mechanisms == ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]
    assert session.failure is not None


def test_authenticate_when_there_was_no_handshake_then_is_out_of_turn(session: SaslSession) -> None:
    assert authenticate(session, PLAIN_TOKEN).error_code == IllegalSaslStateError.errno
    assert session.principal is None
    assert session.failure is not None


def test_handshake_when_it_comes_twice_then_is_out_of_turn(session: SaslSession) -> None:
    handshake(session)
    assert handshake(session).error_code == IllegalSaslStateError.errno
    assert session.failure is not None


def test_handshake_when_the_client_is_known_then_is_an_error_and_the_client_stays_known(
    session: SaslSession,
) -> None:
    handshake(session)
    authenticate(session, PLAIN_TOKEN)
    assert handshake(session).error_code == IllegalSaslStateError.errno
    assert authenticate(session, PLAIN_TOKEN).error_code == IllegalSaslStateError.errno
    assert session.principal == "User:alice"
    assert session.failure is None


def test_apis_when_the_client_is_not_known_then_are_those_that_make_it_known(session: SaslSession) -> None:
    assert session.allows(ApiVersionsRequest.API_KEY)
    assert session.allows(SaslHandshakeRequest.API_KEY)
    assert not session.allows(MetadataRequest.API_KEY)
    handshake(session)
    authenticate(session, PLAIN_TOKEN)
    assert session.allows(MetadataRequest.API_KEY)


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
def test_accept_when_it_refuses_a_right_password_then_the_client_is_refused(
    users: Users, mechanism: str
) -> None:
    asked: list[tuple[str, str | None]] = []

    async def refuse(user: str, password: str | None) -> None:
        asked.append((user, password))
        raise AuthenticationError("somebody else knows better")

    session = SaslSession(users, refuse)
    handshake(session, mechanism)
    if mechanism == "PLAIN":
        answer = authenticate(session, PLAIN_TOKEN)
    else:
        client = ScramClient([mechanism], "alice", "wonderland")
        first = authenticate(session, client.get_client_first().encode()).auth_bytes
        assert asked == []
        client.set_server_first(first.decode())
        answer = authenticate(session, client.get_client_final().encode())
    assert asked == [("alice", "wonderland" if mechanism == "PLAIN" else None)]
    assert answer.error_code == SaslAuthenticationFailedError.errno
    assert session.principal is None
    assert session.failure == "somebody else knows better"


def test_users_that_are_checked_elsewhere_then_need_plain_a_name_and_a_password() -> None:
    session = SaslSession(UncheckedUsers())
    assert handshake(session, "SCRAM-SHA-256").mechanisms == ["PLAIN"]
    for token in (b"\0alice\0", b"\0\0wonderland"):
        session = SaslSession(UncheckedUsers())
        handshake(session)
        assert authenticate(session, token).error_code == SaslAuthenticationFailedError.errno
