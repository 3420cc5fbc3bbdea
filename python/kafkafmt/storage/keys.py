"""Keys that wrap the data keys of encrypted segments.

A key ring is a file with a section for each key, whose name is the key's id:

    [backup-2026]
    file = /etc/kafkafmt/backup-2026.key

    [tiered-1]
    file = /etc/kafkafmt/tiered-1.pem

    [vault-1]
    command = /usr/local/bin/unwrap-with-vault --mount transit

A file contains one of these, and a relative path is relative to the key ring:

- an RSA key in PEM: data keys are wrapped by RSA OAEP with SHA3-512, as in tiered storage. A public key only wraps.
- a key of 32 bytes, as 64 hexadecimal digits, or as they are: data keys are wrapped by AES-256-GCM.

A command is run without a shell, with the arguments `unwrap` or `wrap`, and the key's id. It reads the bytes from its
standard input, and writes the result to its standard output.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import shlex
import subprocess
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from kafkafmt._util.files import read_regular
from kafkafmt._util.ini import IniError, Section, read_ini
from kafkafmt._util.user_errors import UserError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, RSAPublicKey
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

DATA_KEY_BYTES = 32
_NONCE_BYTES = 12
_HASH_BYTES = hashlib.sha3_512().digest_size
_COMMAND_SECONDS = 60
_PROPERTIES = ("file", "command")


class KeyRingError(UserError, ValueError):
    """A key is missing, cannot be read, or did not wrap this data key. The message is one line and names the key."""


class KeyRing:
    """The keys of a file, by id. Pickles as the path of the file. The file and its keys are read when first used."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._keys: dict[str, _Key] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return KeyRing, (self.path,)

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> KeyRing:
        """Read a key ring. Raises KeyRingError if the file cannot be read, or is no key ring."""
        ring = cls(Path(path).absolute())
        ring._sections  # noqa: B018
        return ring

    @cached_property
    def _sections(self) -> dict[str, Section]:
        try:
            return {section.name: _checked(section) for section in read_ini(self.path)}
        except OSError as error:
            raise KeyRingError(
                f"{self.path}: the key ring cannot be read: {error.strerror or error}"
            ) from None
        except IniError as error:
            raise KeyRingError(str(error)) from None

    @property
    def key_ids(self) -> list[str]:
        """The ids of all keys, sorted."""
        return sorted(self._sections)

    @property
    def files(self) -> list[Path]:
        """The files of keys, which may not exist."""
        files = (section.properties.get("file") for section in self._sections.values())
        return [self.path.parent / file for file in files if file is not None]

    def unwrap(self, key_id: str, wrapped: bytes) -> bytes:
        """Return the data key that was wrapped by the key of this id. Raises KeyRingError."""
        return self._key(key_id).unwrap(wrapped)

    def wrap(self, key_id: str, data_key: bytes) -> bytes:
        """Wrap a data key by the key of this id. Raises KeyRingError."""
        return self._key(key_id).wrap(data_key)

    def _key(self, key_id: str) -> _Key:
        if key_id not in self._keys:
            if key_id not in self._sections:
                # Read the file again: the key may have been added since. Another thread may do the same.
                self.__dict__.pop("_sections", None)
            section = self._sections.get(key_id)
            if section is None:
                known = ", ".join(self.key_ids) or "none"
                raise KeyRingError(f"{self.path}: no key {key_id!r}; expected one of its keys: {known}")
            command = section.properties.get("command")
            if command is not None:
                self._keys[key_id] = _CommandKey(key_id, shlex.split(command))
            else:
                self._keys[key_id] = _key_of_file(key_id, self.path.parent / section.properties["file"])
        return self._keys[key_id]


def _checked(section: Section) -> Section:
    """Return the section of a key. Raises KeyRingError if it does not have one of the two properties."""
    unknown = next((name for name in section.properties if name not in _PROPERTIES), None)
    if unknown is not None:
        raise KeyRingError(str(section.error(f"expected `file` or `command`, found {unknown!r}", unknown)))
    if len(section.properties) != 1 or not all(section.properties.values()):
        found = ", ".join(section.properties) or "none"
        raise KeyRingError(str(section.error(f"expected one of `file` and `command`, found {found}")))
    return section


class _Key(Protocol):
    def unwrap(self, wrapped: bytes) -> bytes: ...

    def wrap(self, data_key: bytes) -> bytes: ...


def _key_of_file(key_id: str, path: Path) -> _Key:
    try:
        data = read_regular(path)
    except OSError as error:
        raise KeyRingError(f"key {key_id!r}: {path} cannot be read: {error.strerror or error}") from None
    if b"-----BEGIN" in data:
        return _rsa_key(key_id, path, data)
    if len(data) != DATA_KEY_BYTES:
        try:
            data = bytes.fromhex(data.decode("ascii").strip())
        except ValueError:
            data = b""
    if len(data) != DATA_KEY_BYTES:
        raise KeyRingError(
            f"key {key_id!r}: {path}: expected an RSA key in PEM, 32 bytes, or 64 hexadecimal digits"
        )
    return _AesKey(key_id, aes_gcm(data))


def aes_gcm(key: bytes) -> AESGCM:
    """Return the cipher of a key. Raises KeyRingError if it is no key, or without the package `cryptography`."""
    ensure_cryptography()
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    if len(key) != DATA_KEY_BYTES:
        raise KeyRingError(f"expected a key of {DATA_KEY_BYTES} bytes, found {len(key)}")
    return AESGCM(key)


def ensure_cryptography() -> None:
    """Raise KeyRingError if the package `cryptography` is not installed."""
    try:
        import cryptography.exceptions  # noqa: F401
    except ImportError:
        raise KeyRingError(
            "encrypted segments need the package cryptography: pip install 'kafkafmt[encryption]'"
        ) from None


@dataclass(frozen=True)
class _AesKey:
    """Wraps by AES-256-GCM: 12 bytes of nonce, the encrypted data key, the tag. The key's id is authenticated."""

    key_id: str
    cipher: AESGCM

    def unwrap(self, wrapped: bytes) -> bytes:
        from cryptography.exceptions import InvalidTag

        try:
            return self.cipher.decrypt(wrapped[:_NONCE_BYTES], wrapped[_NONCE_BYTES:], self.key_id.encode())
        except (InvalidTag, ValueError):
            raise _wrong_key(self.key_id) from None

    def wrap(self, data_key: bytes) -> bytes:
        nonce = secrets.token_bytes(_NONCE_BYTES)
        return nonce + self.cipher.encrypt(nonce, data_key, self.key_id.encode())


@dataclass(frozen=True)
class _RsaKey:
    """Wraps by RSA OAEP with SHA3-512, also in MGF1. private: None for a public key.

    The package `cryptography` supports OAEP up to SHA-2 only, so the padding is done here (RFC 8017, 7.1).
    """

    key_id: str
    public: RSAPublicKey
    private: RSAPrivateKey | None

    @property
    def size(self) -> int:
        return (self.public.key_size + 7) // 8

    def unwrap(self, wrapped: bytes) -> bytes:
        if self.private is None:
            raise KeyRingError(
                f"key {self.key_id!r}: expected a private key to unwrap with, found a public key"
            )
        if len(wrapped) != self.size:
            raise KeyRingError(
                f"key {self.key_id!r}: expected a wrapped data key of {self.size} bytes, found {len(wrapped)}"
            )
        numbers = self.private.private_numbers()
        secret = pow(int.from_bytes(wrapped, "big"), numbers.d, numbers.public_numbers.n)
        encoded = secret.to_bytes(self.size, "big")
        masked_seed, masked = encoded[1 : 1 + _HASH_BYTES], encoded[1 + _HASH_BYTES :]
        seed = _xor(masked_seed, _mask(masked, _HASH_BYTES))
        block = _xor(masked, _mask(seed, len(masked)))
        label, padded = block[:_HASH_BYTES], block[_HASH_BYTES:].lstrip(b"\0")
        if encoded[0] or label != hashlib.sha3_512().digest() or padded[:1] != b"\1":
            raise _wrong_key(self.key_id)
        return padded[1:]

    def wrap(self, data_key: bytes) -> bytes:
        padding = self.size - len(data_key) - 2 * _HASH_BYTES - 2
        if padding < 0:
            raise KeyRingError(f"key {self.key_id!r}: expected an RSA key of 2048 bits or more")
        block = hashlib.sha3_512().digest() + bytes(padding) + b"\1" + data_key
        seed = secrets.token_bytes(_HASH_BYTES)
        masked = _xor(block, _mask(seed, len(block)))
        encoded = b"\0" + _xor(seed, _mask(masked, _HASH_BYTES)) + masked
        numbers = self.public.public_numbers()
        return pow(int.from_bytes(encoded, "big"), numbers.e, numbers.n).to_bytes(self.size, "big")


def _rsa_key(key_id: str, path: Path, data: bytes) -> _RsaKey:
    ensure_cryptography()
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, RSAPublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_pem_public_key

    load = partial(load_pem_private_key, password=None) if b"PRIVATE KEY" in data else load_pem_public_key
    try:
        key = load(data)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        reason = str(error).partition("\n")[0]
        raise KeyRingError(f"key {key_id!r}: {path}: not a readable PEM key: {reason}") from None
    if isinstance(key, RSAPrivateKey):
        return _RsaKey(key_id, key.public_key(), key)
    if isinstance(key, RSAPublicKey):
        return _RsaKey(key_id, key, None)
    raise KeyRingError(f"key {key_id!r}: {path}: expected an RSA key, found {type(key).__name__}")


def _mask(seed: bytes, size: int) -> bytes:
    """Return the mask of MGF1 with SHA3-512 (RFC 8017, B.2.1)."""
    blocks = range(-(-size // _HASH_BYTES))
    return b"".join(hashlib.sha3_512(seed + block.to_bytes(4, "big")).digest() for block in blocks)[:size]


def _xor(one: bytes, other: bytes) -> bytes:
    return bytes(left ^ right for left, right in zip(one, other, strict=True))


@dataclass(frozen=True)
class _CommandKey:
    """Runs a command that wraps and unwraps."""

    key_id: str
    command: list[str]

    def unwrap(self, wrapped: bytes) -> bytes:
        return self._run("unwrap", wrapped)

    def wrap(self, data_key: bytes) -> bytes:
        return self._run("wrap", data_key)

    def _run(self, what: str, data: bytes) -> bytes:
        try:
            done = subprocess.run(
                [*self.command, what, self.key_id], input=data, capture_output=True, timeout=_COMMAND_SECONDS
            )
        except subprocess.TimeoutExpired:  # its text has the command, and that may have secrets
            raise KeyRingError(
                f"key {self.key_id!r}: the command did not {what} within {_COMMAND_SECONDS} seconds"
            ) from None
        except OSError as error:
            raise KeyRingError(f"key {self.key_id!r}: the command cannot {what}: {error}") from None
        if done.returncode or not done.stdout:
            lines = done.stderr.decode(errors="replace").strip().splitlines() or ["no output"]
            raise KeyRingError(
                f"key {self.key_id!r}: the command to {what} exited with {done.returncode}: {lines[-1]}"
            )
        return done.stdout


def _wrong_key(key_id: str) -> KeyRingError:
    return KeyRingError(
        f"key {key_id!r} did not wrap this data key: it is another key, or the bytes are damaged"
    )
