"""Read the keys of records to erase from a file: a key in each line."""

from __future__ import annotations

import base64
import binascii
import codecs
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal, TypeAlias

from _kafkafmt.records.key_table import KeySet
from kafkafmt._util.user_errors import UserError

KeyFormat: TypeAlias = Literal["text", "base64", "hex"]

_DECODERS: Mapping[KeyFormat, Callable[[bytes], bytes]] = {
    "text": bytes,
    "base64": lambda line: base64.b64decode(line, validate=True),
    "hex": lambda line: bytes.fromhex(line.decode("ascii")),
}

# UTF-8 has such a mark if an editor wrote it. UTF-16 and UTF-32 begin with one of the others.
_BYTE_ORDER_MARKS = (codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


class KeysError(UserError, ValueError):
    """A file of keys has a malformed line, or no key."""


def read_keys(path: Path, key_format: KeyFormat = "text") -> KeySet:
    """Read a file with a key in each line. Line ends (LF, or CR and LF) are no part of keys. Empty lines are skipped.

    key_format: "text": the bytes of the line are the key, as UTF-8 usually; "base64", "hex": they encode it.

    A file that begins with a byte order mark is refused: its first key would match no record.

    Raises KeysError, with the number of the line, and OSError.
    """
    decode = _DECODERS[key_format]
    keys: set[bytes] = set()
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if number == 1 and line.startswith(_BYTE_ORDER_MARKS):
                expected = "expected UTF-8 without a byte order mark, or keys in base64 or hex"
                raise KeysError(f"{path}: line 1: {expected}, found a byte order mark")
            text = line.removesuffix(b"\n").removesuffix(b"\r")
            if not text:
                continue
            try:
                keys.add(decode(text))
            except (binascii.Error, ValueError):
                shown = text[:40].decode("ascii", "backslashreplace")
                raise KeysError(f"{path}: line {number}: expected {key_format}, found {shown!r}") from None
    if not keys:
        raise KeysError(f"{path}: expected a key in each line, found no key")
    return KeySet(keys)
