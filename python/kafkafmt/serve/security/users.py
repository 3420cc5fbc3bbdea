"""The users file, and what is known of users: enough to hold a password or a SCRAM proof against it.

An INI with a section for each user: a password, which does for every mechanism, or SCRAM credentials in Kafka's own
form (`ScramCredentialUtils`), as `kafka-configs.sh --describe` prints those kept in ZooKeeper, which do for theirs
only.

    [alice]
    password = wonderland

    [bob]
    SCRAM-SHA-256 = [salt=...,stored_key=...,server_key=...,iterations=8192]

A name that is not there takes the steps that a known one takes with a wrong password: it has a made-up
credential, the same each time, that no password fits, of as many iterations as most users have. What sets known
names apart is to have other iterations than most, or a salt that looks unlike those made here, as Kafka's do.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from kafkafmt.ini import Section, read_ini

PLAIN = "PLAIN"
# Of each SCRAM mechanism, the hash function that it is named for (RFC 5802, RFC 7677).
SCRAM_HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
MECHANISMS = (PLAIN, *SCRAM_HASHES)

# As in Kafka: fewer are not safe; more would have a client compute for minutes.
MIN_ITERATIONS, MAX_ITERATIONS = 4096, 16384
_MIN_SALT_BYTES = 12
_SALT_BYTES = 20
_PASSWORD = "password"
_CREDENTIAL_FIELDS = ("salt", "stored_key", "server_key", "iterations")


@dataclass(frozen=True)
class ScramCredential:
    """What a server keeps of a password for one SCRAM mechanism (RFC 5802, section 3)."""

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int

    @classmethod
    def of_password(cls, password: str, hash_name: str, salt: bytes) -> ScramCredential:
        """Made as Kafka makes it: the password is taken as it is, not put through SASLprep."""
        salted = hashlib.pbkdf2_hmac(hash_name, password.encode(), salt, MIN_ITERATIONS)
        client_key = hmac.digest(salted, b"Client Key", hash_name)
        stored_key = hashlib.new(hash_name, client_key).digest()
        return cls(salt, stored_key, hmac.digest(salted, b"Server Key", hash_name), MIN_ITERATIONS)


@dataclass(frozen=True)
class _User:
    password_digest: bytes | None
    credentials: Mapping[str, ScramCredential]


_NOBODY = _User(None, {})


@dataclass(frozen=True)
class Users:
    """The users of a file. Processes that serve together share one: its secret makes salts, and is never shown."""

    path: Path
    mechanisms: tuple[str, ...]
    _users: Mapping[str, _User]
    _secret: bytes = field(repr=False)

    def read_again(self) -> Users:
        """Read the file as it is now. Salts of unknown names stay, as the secret does. Raises as `read_users`."""
        return _read_users(self.path, self.mechanisms, self._secret)

    def has_password(self, name: str, password: str) -> bool:
        """Whether this is the user's password, for SASL/PLAIN. A user with SCRAM credentials alone has none."""
        known = self._users.get(name, _NOBODY).password_digest
        given = _keyed(self._secret, "password", password)
        nobody = bytes(len(given))  # made for known names, too: both take the same steps
        return hmac.compare_digest(given, known or nobody)

    def scram_credential(self, name: str, mechanism: str) -> ScramCredential:
        """Return the user's credential for a mechanism, or a made-up one.

        The made-up one is computed for known names as well, so that the time does not tell them from others.
        """
        credentials = self._users.get(name, _NOBODY).credentials
        return credentials.get(mechanism, self._made_up_credential(name, mechanism))

    def _made_up_credential(self, name: str, mechanism: str) -> ScramCredential:
        hash_name = SCRAM_HASHES[mechanism]
        stored_key, server_key = (
            _keyed(self._secret, f"{mechanism} {key}", name, hash_name)
            for key in ("stored key", "server key")
        )
        salt = _salt(self._secret, mechanism, name)
        return ScramCredential(salt, stored_key, server_key, self._usual_iterations[mechanism])

    @cached_property
    def _usual_iterations(self) -> Mapping[str, int]:
        """What most users have, by mechanism."""
        counts: dict[str, Counter[int]] = {mechanism: Counter() for mechanism in SCRAM_HASHES}
        for user in self._users.values():
            for mechanism, credential in user.credentials.items():
                counts[mechanism][credential.iterations] += 1
        return {
            mechanism: max(found, key=found.__getitem__, default=MIN_ITERATIONS)
            for mechanism, found in counts.items()
        }


def read_users(path: Path, mechanisms: Iterable[str] = MECHANISMS) -> Users:
    """The users of a file, for these mechanisms. Raises IniError and OSError."""
    return _read_users(path, tuple(mechanisms), secrets.token_bytes(32))


def _read_users(path: Path, mechanisms: tuple[str, ...], secret: bytes) -> Users:
    users = {section.name: _user(section, mechanisms, secret) for section in read_ini(path)}
    return Users(path, mechanisms, users, secret)


def _user(section: Section, mechanisms: tuple[str, ...], secret: bytes) -> _User:
    properties = section.properties
    for key in properties:
        if key != _PASSWORD and key not in SCRAM_HASHES:
            known = ", ".join([_PASSWORD, *SCRAM_HASHES])
            raise section.error(f"{key} is no property of a user: {known} are", key)
    if not properties:
        raise section.error(f"[{section.name}] has neither a {_PASSWORD} nor a SCRAM credential")
    credentials = {key: _credential(section, key) for key in properties if key in SCRAM_HASHES}
    password = properties.get(_PASSWORD)
    if password is None:
        return _User(None, credentials)
    if not password:
        raise section.error("the password is empty", _PASSWORD)
    for mechanism, hash_name in SCRAM_HASHES.items():
        if mechanism in mechanisms and mechanism not in credentials:
            salt = _salt(secret, mechanism, section.name)
            credentials[mechanism] = ScramCredential.of_password(password, hash_name, salt)
    return _User(_keyed(secret, "password", password), credentials)


def _credential(section: Section, mechanism: str) -> ScramCredential:
    """A credential as Kafka writes it, `[salt=...,stored_key=...,server_key=...,iterations=...]`."""
    fields = dict(
        part.strip().partition("=")[::2] for part in section.properties[mechanism].strip("[]").split(",")
    )
    if sorted(fields) != sorted(_CREDENTIAL_FIELDS):
        form = ",".join(f"{name}=..." for name in _CREDENTIAL_FIELDS)
        raise section.error(f"{mechanism} is not of the form [{form}]", mechanism)
    try:
        salt, stored_key, server_key = (
            base64.b64decode(fields[name], validate=True) for name in _CREDENTIAL_FIELDS[:3]
        )
        iterations = int(fields["iterations"])
    except ValueError:
        raise section.error(
            f"{mechanism}: keys and salt in base64, and iterations, are expected", mechanism
        ) from None
    if not MIN_ITERATIONS <= iterations <= MAX_ITERATIONS:
        raise section.error(
            f"{mechanism}: {iterations} iterations, {MIN_ITERATIONS} to {MAX_ITERATIONS} are expected",
            mechanism,
        )
    if len(salt) < _MIN_SALT_BYTES:
        raise section.error(
            f"{mechanism}: a salt of {len(salt)} bytes, at least {_MIN_SALT_BYTES} are expected", mechanism
        )
    size = hashlib.new(SCRAM_HASHES[mechanism]).digest_size
    for name, key in (("stored_key", stored_key), ("server_key", server_key)):
        if len(key) != size:
            raise section.error(f"{mechanism}: a {name} of {len(key)} bytes, {size} are expected", mechanism)
    return ScramCredential(salt, stored_key, server_key, iterations)


def _salt(secret: bytes, mechanism: str, name: str) -> bytes:
    return _keyed(secret, f"{mechanism} salt", name)[:_SALT_BYTES]


def _keyed(secret: bytes, purpose: str, text: str, hash_name: str = "sha256") -> bytes:
    """A digest that only who has the secret can compute. `purpose` holds no NUL."""
    return hmac.digest(secret, f"{purpose}\0{text}".encode("utf-8", "surrogatepass"), hash_name)
