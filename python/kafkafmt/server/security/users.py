"""The users file, and what is kept of users to verify a password or a SCRAM proof.

It is an INI file with a section for each user: a password, which serves for every mechanism, or SCRAM credentials, each
for its own mechanism. Credentials have Kafka's form (`ScramCredentialUtils`), in which `kafka-configs.sh --describe`
prints those in ZooKeeper.

    [alice]
    password = wonderland

    [bob]
    SCRAM-SHA-256 = [salt=...,stored_key=...,server_key=...,iterations=8192]

An unknown name takes the same steps as a known one with a wrong password. It has a made-up credential, the same each
time, that no password fits, with as many iterations as most users have. A known name can be told from unknown ones only
if it has other iterations than most users, or a salt unlike those made here, such as Kafka's.
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

from kafkafmt._util.directory_lock import lock_surroundings
from kafkafmt._util.files import read_regular, replace_file
from kafkafmt._util.ini import Section, read_ini

PLAIN = "PLAIN"
# The hash function of each SCRAM mechanism (RFC 5802, RFC 7677).
SCRAM_HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
MECHANISMS = (PLAIN, *SCRAM_HASHES)

# As in Kafka: fewer iterations are not safe; more could make a client compute for minutes.
MIN_ITERATIONS, MAX_ITERATIONS = 4096, 16384
# The name of the file in the folder of an endpoint's state.
SECRET_FILE = "scram.secret"
_SECRET_BYTES = 32
_MIN_SALT_BYTES = 12
_SALT_BYTES = 20
_PASSWORD = "password"
_CREDENTIAL_FIELDS = ("salt", "stored_key", "server_key", "iterations")


@dataclass(frozen=True)
class ScramCredential:
    """What a server stores of a password for one SCRAM mechanism (RFC 5802, section 3)."""

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int

    @classmethod
    def of_password(cls, password: str, hash_name: str, salt: bytes) -> ScramCredential:
        """Create the credential of a password as Kafka does: SASLprep is not applied."""
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
    """The users of a file. The workers of an endpoint share it with its secret, from which salts are derived."""

    path: Path
    mechanisms: tuple[str, ...]
    _users: Mapping[str, _User] = field(repr=False)
    _secret: bytes = field(repr=False)

    @property
    def names(self) -> frozenset[str]:
        """The names of the users."""
        return frozenset(self._users)

    def reload(self) -> Users:
        """Read the file again. The secret stays, and so do salts of unknown names. Raises as `read_users`."""
        return _read_users(self.path, self.mechanisms, self._secret)

    def has_password(self, name: str, password: str) -> bool:
        """Return whether this is the user's password (SASL/PLAIN). A user with only SCRAM credentials has none."""
        known = self._users.get(name, _NOBODY).password_digest
        given = _keyed(self._secret, "password", password)
        nobody = bytes(len(given))  # created for known names as well, so that both take the same steps
        return hmac.compare_digest(given, known or nobody)

    def scram_credential(self, name: str, mechanism: str) -> ScramCredential:
        """Return the user's credential for a mechanism, or a made-up one.

        The made-up one is computed for known names as well, so that the time does not reveal them.
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
        """Return the iterations that most users have, by mechanism."""
        counts: dict[str, Counter[int]] = {mechanism: Counter() for mechanism in SCRAM_HASHES}
        for user in self._users.values():
            for mechanism, credential in user.credentials.items():
                counts[mechanism][credential.iterations] += 1
        return {
            mechanism: max(found, key=found.__getitem__, default=MIN_ITERATIONS)
            for mechanism, found in counts.items()
        }


@dataclass(frozen=True)
class UncheckedUsers:
    """All users, with PLAIN only, for a server that passes their passwords on. What it passes them to checks them."""

    mechanisms: tuple[str, ...] = (PLAIN,)

    def reload(self) -> UncheckedUsers:
        """Return itself: there is no file."""
        return self

    def has_password(self, name: str, password: str) -> bool:
        """Return whether there are a name and a password."""
        return bool(name and password)


def read_users(path: Path, mechanisms: Iterable[str] = MECHANISMS, *, secret: bytes | None = None) -> Users:
    """Read the users of a file, for these mechanisms. Raises IniError and OSError.

    secret: salts are derived from it; None: a random one that is not saved.
    """
    return _read_users(path, tuple(mechanisms), secret or secrets.token_bytes(_SECRET_BYTES))


def load_or_create_secret(folder: Path) -> bytes:
    """Return the secret in a folder, from which salts are derived. Creates it if it is missing. Raises OSError.

    With the same secret after a restart, the salts of unknown names do not change, as those of known names do not.
    """
    path = folder / SECRET_FILE
    folder.mkdir(0o700, parents=True, exist_ok=True)
    with lock_surroundings(path):
        if not path.exists():
            replace_file(path, secrets.token_bytes(_SECRET_BYTES), mode=0o600)
        secret = read_regular(path)
    if len(secret) != _SECRET_BYTES:
        raise OSError(f"{path}: expected a secret of {_SECRET_BYTES} bytes, found {len(secret)}")
    return secret


def _read_users(path: Path, mechanisms: tuple[str, ...], secret: bytes) -> Users:
    users = {section.name: _user(section, mechanisms, secret) for section in read_ini(path)}
    return Users(path, mechanisms, users, secret)


def _user(section: Section, mechanisms: tuple[str, ...], secret: bytes) -> _User:
    properties = section.properties
    for key in properties:
        if key != _PASSWORD and key not in SCRAM_HASHES:
            known = ", ".join([_PASSWORD, *SCRAM_HASHES])
            raise section.error(f"property of a user: expected one of {known}, found {key}", key)
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
    """Parse Kafka's `[salt=...,stored_key=...,server_key=...,iterations=...]`. Raises IniError."""
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
            f"{mechanism}: expected salt and keys in base64, and a number of iterations", mechanism
        ) from None
    if not MIN_ITERATIONS <= iterations <= MAX_ITERATIONS:
        raise section.error(
            f"{mechanism}: expected {MIN_ITERATIONS} to {MAX_ITERATIONS} iterations, found {iterations}",
            mechanism,
        )
    if len(salt) < _MIN_SALT_BYTES:
        raise section.error(
            f"{mechanism}: expected a salt of at least {_MIN_SALT_BYTES} bytes, found {len(salt)}", mechanism
        )
    size = hashlib.new(SCRAM_HASHES[mechanism]).digest_size
    for name, key in (("stored_key", stored_key), ("server_key", server_key)):
        if len(key) != size:
            raise section.error(
                f"{mechanism}: expected a {name} of {size} bytes, found {len(key)}", mechanism
            )
    return ScramCredential(salt, stored_key, server_key, iterations)


def _salt(secret: bytes, mechanism: str, name: str) -> bytes:
    return _keyed(secret, f"{mechanism} salt", name)[:_SALT_BYTES]


def _keyed(secret: bytes, purpose: str, text: str, hash_name: str = "sha256") -> bytes:
    """Return a digest that cannot be computed without the secret. purpose: must not contain NUL."""
    return hmac.digest(secret, f"{purpose}\0{text}".encode("utf-8", "surrogatepass"), hash_name)
