"""Key rings: keys of files and of commands wrap and unwrap data keys."""

from __future__ import annotations

import os
import pickle
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from kafkafmt._util.ini import Section
from kafkafmt.storage import keys
from kafkafmt.storage.keys import KeyRing, KeyRingError
from storage.tiered_writer import key_pair

pytest.importorskip("cryptography")


def ring(folder: Path, text: str) -> KeyRing:
    (folder / "keys.ini").write_text(text)
    return KeyRing.read(folder / "keys.ini")


COMMAND = "import sys; data = sys.stdin.buffer.read(); sys.stdout.buffer.write(data[::-1])"


def test_keys_of_each_kind_when_they_wrap_then_unwrap_the_same_data_key(tmp_path: Path) -> None:
    key_pair(tmp_path, "rsa")
    (tmp_path / "hex.key").write_text("ab" * 32 + "\n")
    (tmp_path / "raw.key").write_bytes(bytes(range(32)))
    (tmp_path / "run.py").write_text(COMMAND)
    found = ring(
        tmp_path,
        "[rsa]\nfile = rsa.pem\n[hex]\nfile = hex.key\n[raw]\nfile = raw.key\n"
        f"[command]\ncommand = {sys.executable} {tmp_path}/run.py\n",
    )
    copy = pickle.loads(pickle.dumps(found))
    for key_id in found.key_ids:
        data_key = os.urandom(32)
        wrapped = found.wrap(key_id, data_key)
        assert wrapped != data_key
        assert copy.unwrap(key_id, wrapped) == data_key


def test_key_that_is_added_to_the_file_when_first_used_then_is_found(tmp_path: Path) -> None:
    (tmp_path / "raw.key").write_bytes(bytes(32))
    found = ring(tmp_path, "[a]\nfile = raw.key\n")
    with pytest.raises(KeyRingError, match="no key 'b'"):
        found.wrap("b", bytes(32))
    ring(tmp_path, "[a]\nfile = raw.key\n[b]\nfile = raw.key\n")
    assert found.unwrap("b", found.wrap("b", bytes(32))) == bytes(32)


def test_key_that_is_unknown_when_two_threads_look_it_up_then_both_read_the_file_again(
    tmp_path: Path,
) -> None:
    (tmp_path / "raw.key").write_bytes(bytes(32))
    found = ring(tmp_path, "[a]\nfile = raw.key\n")
    ring(tmp_path, "[a]\nfile = raw.key\n[b]\nfile = raw.key\n")
    both = Barrier(2)

    class Sections(dict[str, Section]):
        def __contains__(self, key_id: object) -> bool:
            both.wait(60)
            return super().__contains__(key_id)

    found.__dict__["_sections"] = Sections(found._sections)
    with ThreadPoolExecutor(2) as threads:
        wrapped = list(threads.map(lambda _: found.wrap("b", bytes(32)), range(2)))
    assert [found.unwrap("b", one) for one in wrapped] == [bytes(32)] * 2


def test_public_key_when_it_unwraps_then_the_error_tells_that_a_private_key_is_needed(tmp_path: Path) -> None:
    key_pair(tmp_path, "rsa")
    found = ring(tmp_path, "[rsa]\nfile = rsa.pub\n[private]\nfile = rsa.pem\n")
    wrapped = found.wrap("rsa", bytes(32))
    assert found.unwrap("private", wrapped) == bytes(32)
    with pytest.raises(KeyRingError, match="expected a private key"):
        found.unwrap("rsa", wrapped)


@pytest.mark.parametrize("size", [0, 1, 255, 256, 257])
def test_wrapped_key_that_is_damaged_when_unwrapped_then_is_refused(tmp_path: Path, size: int) -> None:
    key_pair(tmp_path, "rsa")
    (tmp_path / "raw.key").write_bytes(bytes(32))
    found = ring(tmp_path, "[rsa]\nfile = rsa.pem\n[raw]\nfile = raw.key\n")
    for key_id in found.key_ids:
        with pytest.raises(KeyRingError, match=key_id):
            found.unwrap(key_id, os.urandom(size))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[a]\n", "line 1: expected one of `file` and `command`, found none"),
        ("[a]\nfile = x\ncommand = y\n", "found file, command"),
        ("[a]\npath = x\n", "line 2: expected `file` or `command`, found 'path'"),
        ("[a]\nfile = none\n", "key 'a': .*none cannot be read: No such file"),
        ("[a]\nfile = keys.ini\n", "expected an RSA key in PEM, 32 bytes, or 64 hexadecimal digits"),
        ("[a]\nfile = ec.pem\n", "expected an RSA key, found "),
        ("[a]\nfile = bad.pem\n", "not a readable PEM key"),
        ("[a]\ncommand = /none/such\n", "key 'a': the command cannot unwrap: .*No such file"),
        ("[a]\ncommand = sh -c 'echo no access >&2; exit 3'\n", "exited with 3: no access"),
        ("[b]\nfile = x\n[c]\nfile = y\n", "no key 'a'; expected one of its keys: b, c"),
    ],
)
def test_key_ring_that_is_not_right_when_used_then_the_error_names_file_and_key(
    tmp_path: Path, text: str, message: str
) -> None:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    private = ec.generate_private_key(ec.SECP256R1()).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (tmp_path / "ec.pem").write_bytes(private)
    (tmp_path / "bad.pem").write_text("-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n")
    with pytest.raises(KeyRingError, match=message):
        ring(tmp_path, text).unwrap("a", bytes(60))


def test_key_ring_when_its_file_is_missing_then_the_error_names_it(tmp_path: Path) -> None:
    with pytest.raises(KeyRingError, match=r"none.ini: the key ring cannot be read: No such file"):
        KeyRing.read(tmp_path / "none.ini")


def test_encrypted_segments_when_cryptography_is_missing_then_the_error_names_the_extra(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.exceptions", None)
    with pytest.raises(KeyRingError, match=r"pip install 'kafkafmt\[encryption\]'"):
        keys.aes_gcm(bytes(32))
