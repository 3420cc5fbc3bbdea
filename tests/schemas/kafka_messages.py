"""Kafka's own classes of a release: `Messages.java` and other programs, run on its jars."""

from __future__ import annotations

import json
import re
import subprocess
import zipfile
from base64 import b64decode, b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from broker.jars import JarSet
from oracle.kafka import java

PROGRAM = Path(__file__).with_name("Messages.java")
SECONDS = 120


@dataclass(frozen=True)
class Request:
    """A message for Kafka to write. name: Kafka's, without a package. tags: unknown tagged fields of each structure."""

    name: str
    version: int
    json: dict[str, Any]
    tags: dict[str, bytes]


@dataclass(frozen=True)
class Answer:
    """What Kafka wrote, and the JSON of what it read in that."""

    data: bytes
    json: dict[str, Any]


@cache
def class_names(jars: JarSet) -> dict[str, str]:
    """The generated messages of a release: the name with its package, by the name without."""
    names = {}
    for jar in sorted(jars.fetch().glob("kafka-*.jar")):
        with zipfile.ZipFile(jar) as opened:
            for name in opened.namelist():
                if found := re.fullmatch(r"(org/apache/kafka/[\w/]+/(\w+))JsonConverter\.class", name):
                    names[found[2]] = found[1].replace("/", ".")
    return names


def run(jars: JarSet, program: Path, given: str = "") -> list[str]:
    """Compile and run a program on the jars of a release. Return the lines that it prints."""
    options = ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", jars.classpath()]
    done = subprocess.run(
        [java("java"), *options, str(program)],
        input=given,
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def write(jars: JarSet, requests: Sequence[Request]) -> list[Answer]:
    """Let Kafka write and read messages, all in one process."""
    names = class_names(jars)
    lines = [
        json.dumps(
            {
                "class": names[request.name],
                "version": request.version,
                "json": request.json,
                "tags": {tag: b64encode(data).decode() for tag, data in request.tags.items()},
            }
        )
        for request in requests
    ]
    answers = [json.loads(line) for line in run(jars, PROGRAM, "\n".join(lines))]
    for request, answer in zip(requests, answers, strict=True):
        assert "error" not in answer, (request, answer)
    return [Answer(b64decode(answer["bytes"]), answer["json"]) for answer in answers]
