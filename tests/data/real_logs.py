"""The log folders beside this file, and what Java's consumer read in each; README.md says what they hold."""

from __future__ import annotations

import json
import lzma
from base64 import b64decode
from pathlib import Path
from typing import NamedTuple

LOGS = Path(__file__).with_name("logs")
EXPECTED = Path(__file__).with_name("expected")
NAMES = sorted(path.name for path in LOGS.iterdir())


class ExpectedRecord(NamedTuple):
    """One record as the consumer handed it out."""

    offset: int
    timestamp: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]
    committed: bool


def expected(name: str) -> list[ExpectedRecord]:
    """What a consumer reads in the log folder of that name; records of aborted transactions are among it."""
    with lzma.open(EXPECTED / f"{name}.jsonl.xz", "rt") as lines:
        return [_record(**json.loads(line)) for line in lines]


def _record(**fields: object) -> ExpectedRecord:
    record = ExpectedRecord(**fields)  # type: ignore[arg-type]
    headers = [(key, _bytes(value)) for key, value in record.headers]
    return record._replace(key=_bytes(record.key), value=_bytes(record.value), headers=headers)


def _bytes(text: object) -> bytes | None:
    return b64decode(text) if isinstance(text, str) else None
