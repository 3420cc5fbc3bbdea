"""Messages that Kafka's own classes wrote: `tests/data/messages.jsonl.xz`.

    tools/with_java.sh .venv/bin/python tests/schemas/vectors.py     writes the file anew (Java, seconds)

A line has the name of the class ("class"), its version ("version"), the bytes in base64 ("data"), and what Kafka reads
in them as JSON ("json"). The messages of each class and version come from the newest release that writes them.
"""

from __future__ import annotations

import json
import lzma
import sys
from base64 import b64decode, b64encode
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the helpers are packages under tests/

from kafkafmt.schemas import Message
from schemas.samples import message_classes, messages_and_versions

FILE = Path(__file__).resolve().parents[1] / "data" / "messages.jsonl.xz"
SEED = 20261124


@dataclass(frozen=True)
class Vector:
    message: type[Message]
    version: int
    data: bytes
    json: dict[str, Any]

    def __str__(self) -> str:
        return f"{self.message.__name__}-{self.version}"


@cache
def vectors() -> tuple[Vector, ...]:
    with lzma.open(FILE, "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    return tuple(
        Vector(message_classes()[row["class"]], row["version"], b64decode(row["data"]), row["json"])
        for row in rows
    )


def rows() -> Iterator[dict[str, Any]]:
    from schemas.kafka_messages import write
    from schemas.releases import RELEASES, is_of, requests

    random = Random(SEED)
    for release, jars in RELEASES.items():
        newer = list(RELEASES)[list(RELEASES).index(release) + 1 :]
        cases = [
            (made, version, request)
            for made, version in messages_and_versions()
            if is_of(made, version, release) and not any(is_of(made, version, each) for each in newer)
            for request in requests(made, version, release, random, count=3)
        ]
        answers = write(jars, [request for _, _, request in cases])
        for (made, version, _), answer in zip(cases, answers, strict=True):
            data = b64encode(answer.data).decode()
            yield {"class": made.__name__, "version": version, "data": data, "json": answer.json}


def main() -> None:
    lines = sorted(json.dumps(row, ensure_ascii=False) for row in rows())
    FILE.write_bytes(lzma.compress("".join(f"{line}\n" for line in lines).encode("utf-8")))


if __name__ == "__main__":
    main()
