"""The users file: which credentials it gives, and what is said of a wrong one."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import pickle
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calls import traced_calls
from kafkafmt._util.ini import IniError, read_ini
from kafkafmt.server.security.exchanges import AuthenticationError, ScramExchange
from kafkafmt.server.security.users import (
    MECHANISMS,
    SCRAM_HASHES,
    ScramCredential,
    Users,
    load_or_create_secret,
    read_users,
)

KAFKA_CREDENTIAL = (
    "[salt=ZXkwYjNyd2dhZmU0,stored_key={stored},server_key={server},iterations=4096]"  # ey0b3rwgafe4
)


def write(folder: Path, text: str) -> Path:
    path = folder / "users.ini"
    path.write_text(text)
    return path


@pytest.fixture
def users(tmp_path: Path) -> Users:
    return read_users(write(tmp_path, "[alice]\npassword = won%der = land # 1\n[bob]\npassword = b\n"))


def test_password_when_right_then_is_taken_with_all_its_characters(users: Users) -> None:
    assert users.has_password("alice", "won%der = land # 1")


def test_users_when_shown_then_have_no_credentials(users: Users) -> None:
    assert repr(users) == f"Users(path={users.path!r}, mechanisms={users.mechanisms!r})"


@pytest.mark.parametrize(("name", "password"), [("alice", "b"), ("alice", ""), ("carol", "b"), ("", "")])
def test_password_when_wrong_or_of_nobody_then_is_refused(users: Users, name: str, password: str) -> None:
    assert not users.has_password(name, password)


def test_scram_credential_when_made_then_is_that_of_rfc_7677() -> None:
    made = ScramCredential.of_password("pencil", "sha256", base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ=="))
    assert base64.b64encode(made.stored_key) == b"WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY="
    assert base64.b64encode(made.server_key) == b"wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU="


@pytest.mark.parametrize("mechanism", SCRAM_HASHES)
def test_scram_credential_as_kafka_writes_it_when_read_then_is_the_same(
    tmp_path: Path, mechanism: str
) -> None:
    wanted = ScramCredential.of_password("pencil", SCRAM_HASHES[mechanism], b"ey0b3rwgafe4")
    written = KAFKA_CREDENTIAL.format(
        stored=base64.b64encode(wanted.stored_key).decode(),
        server=base64.b64encode(wanted.server_key).decode(),
    )
    users = read_users(write(tmp_path, f"[alice]\n{mechanism} = {written}\n"))
    assert users.scram_credential("alice", mechanism) == wanted
    assert not users.has_password("alice", "pencil")


@pytest.mark.parametrize("mechanism", SCRAM_HASHES)
def test_name_that_is_not_there_then_has_a_credential_of_the_usual_form_that_stays(
    users: Users, mechanism: str
) -> None:
    known, unknown = (users.scram_credential(name, mechanism) for name in ("alice", "carol"))
    other_process = pickle.loads(pickle.dumps(users))
    assert unknown == other_process.scram_credential("carol", mechanism)
    assert unknown != users.scram_credential("dave", mechanism)
    assert [len(known.salt), len(known.stored_key), len(known.server_key), known.iterations] == [
        len(unknown.salt),
        len(unknown.stored_key),
        len(unknown.server_key),
        unknown.iterations,
    ]


def test_name_that_is_not_there_then_has_as_many_iterations_as_most(tmp_path: Path) -> None:
    key = base64.b64encode(bytes(32)).decode()
    written = KAFKA_CREDENTIAL.format(stored=key, server=key).replace("4096", "8192")
    many = "".join(f"[{name}]\nSCRAM-SHA-256 = {written}\n" for name in ("alice", "bob"))
    users = read_users(write(tmp_path, f"{many}[dave]\npassword = d\n"))
    found = {mechanism: users.scram_credential("carol", mechanism).iterations for mechanism in SCRAM_HASHES}
    assert found == {"SCRAM-SHA-256": 8192, "SCRAM-SHA-512": 4096}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("password = x\n", "line 1: a section, as [name], comes first"),
        ("# all\n[a]\npassword = x\n\n[a]\n", "line 5: [a] already exists"),
        ("[a]\npassword = x\npassword = y\n", "line 3: password already exists in [a]"),
        ("[a]\npassword\n", "line 2: neither [name] nor key = value"),
        ("[b]\npassword = x\n[a]\n", "line 3: [a] has neither a password nor a SCRAM credential"),
        ("[a]\npassword =\n", "line 2: the password is empty"),
        (
            "[a]\nPassword = x\n",
            "line 2: property of a user: expected one of password, SCRAM-SHA-256, SCRAM-SHA-512, found Password",
        ),
        (
            "[a]\nSCRAM-SHA-256 = [salt=x]\n",
            "line 2: SCRAM-SHA-256 is not of the form "
            "[salt=...,stored_key=...,server_key=...,iterations=...]",
        ),
        (
            f"[a]\nSCRAM-SHA-256 = {KAFKA_CREDENTIAL.format(stored='x', server='eA==')}\n",
            "line 2: SCRAM-SHA-256: expected salt and keys in base64, and a number of iterations",
        ),
        (
            f"[a]\nSCRAM-SHA-256 = {KAFKA_CREDENTIAL.format(stored='eA==', server='eA==')}\n",
            "line 2: SCRAM-SHA-256: expected a stored_key of 32 bytes, found 1",
        ),
        (
            "[a]\nSCRAM-SHA-256 = [salt=eA==,stored_key=eA==,server_key=eA==,iterations=4096]\n",
            "line 2: SCRAM-SHA-256: expected a salt of at least 12 bytes, found 1",
        ),
        (
            "[a]\nSCRAM-SHA-256 = [salt=eA==,stored_key=eA==,server_key=eA==,iterations=99]\n",
            "line 2: SCRAM-SHA-256: expected 4096 to 16384 iterations, found 99",
        ),
    ],
)
def test_users_file_when_wrong_then_the_error_names_file_and_line(
    tmp_path: Path, text: str, message: str
) -> None:
    path = write(tmp_path, text)
    with pytest.raises(IniError) as raised:
        read_users(path)
    assert str(raised.value) == f"{path}, {message}"


@given(text=st.text(alphabet="[]=:;# \tab\r\n\x00\x85\u2028é", max_size=40) | st.binary(max_size=40))
def test_ini_file_when_arbitrary_then_is_read_or_refused_in_one_line(
    tmp_path_factory: pytest.TempPathFactory, text: str | bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "arbitrary.ini"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    try:
        described = [(section.properties.keys(), section.lines.keys()) for section in read_ini(path)]
    except IniError as error:
        described, complaint = [], str(error)
    else:
        complaint = str(path)
    assert complaint.startswith(str(path))
    assert "\n" not in complaint
    assert all(properties == lines for properties, lines in described)


def test_credentials_when_a_mechanism_is_not_asked_for_then_are_not_made(tmp_path: Path) -> None:
    path = write(tmp_path, "[alice]\npassword = x\n")
    assert read_users(path).mechanisms == MECHANISMS
    only = read_users(path, ["SCRAM-SHA-512"])
    made = only.scram_credential("alice", "SCRAM-SHA-512")
    assert made == ScramCredential.of_password("x", "sha512", made.salt)


@pytest.mark.parametrize("mechanism", SCRAM_HASHES)
def test_scram_exchange_when_the_name_is_unknown_then_makes_the_calls_of_a_known_one(
    users: Users, mechanism: str
) -> None:
    def attempt(name: str) -> None:
        exchange = ScramExchange(mechanism, users, "server-nonce")
        exchange.respond(f"n,,n={name},r=client-nonce".encode())
        proof = base64.b64encode(bytes(hashlib.new(SCRAM_HASHES[mechanism]).digest_size)).decode()
        with contextlib.suppress(AuthenticationError):
            exchange.respond(f"c=biws,r=client-nonceserver-nonce,p={proof}".encode())
        assert exchange.user is None

    attempt("alice")  # what is done once
    known, unknown = (traced_calls(partial(attempt, name)) for name in ("alice", "carol"))
    assert known.count("hmac_digest") >= 3
    assert known == unknown


def test_password_when_the_name_is_unknown_then_makes_the_calls_of_a_known_one(users: Users) -> None:
    known, unknown = (traced_calls(partial(users.has_password, name, "x")) for name in ("alice", "carol"))
    assert known == unknown


def test_users_when_read_again_then_are_those_of_the_file_and_made_up_salts_stay(tmp_path: Path) -> None:
    path = write(tmp_path, "[alice]\npassword = a\n")
    before = read_users(path, ["SCRAM-SHA-256"])
    write(tmp_path, "[bob]\npassword = b\n")
    after = before.reload()
    assert (after.has_password("alice", "a"), after.has_password("bob", "b")) == (False, True)
    assert after.mechanisms == ("SCRAM-SHA-256",)
    for name in ("alice", "bob", "carol"):
        assert (
            after.scram_credential(name, "SCRAM-SHA-256").salt
            == before.scram_credential(name, "SCRAM-SHA-256").salt
        )


def test_name_that_is_not_there_when_the_endpoint_starts_again_with_its_state_then_has_the_same_salt(
    tmp_path: Path,
) -> None:
    path, state = write(tmp_path, "[alice]\npassword = a\n"), tmp_path / "state"
    before, after = (read_users(path, secret=load_or_create_secret(state)) for _ in range(2))
    for mechanism in SCRAM_HASHES:
        for name in ("alice", "carol"):
            assert before.scram_credential(name, mechanism) == after.scram_credential(name, mechanism)
    (secret,) = state.iterdir()
    assert secret.stat().st_mode & 0o777 == 0o600
    assert state.stat().st_mode & 0o777 == 0o700
    secret.write_bytes(b"")
    with pytest.raises(OSError, match="expected a secret of 32 bytes, found 0"):
        load_or_create_secret(state)
