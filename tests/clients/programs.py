"""The consumer programs: how each is brought to a Fetch version, and what it is handed when it runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from base64 import b64decode
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

import pytest

from clients.install import site
from clients.tap import Fetch, Tap

if TYPE_CHECKING:
    from _pytest.mark import ParameterSet

DRIVERS = Path(__file__).with_name("drivers")
UNCOMMITTED, COMMITTED = "read_uncommitted", "read_committed"
TIMESTAMPS_FROM, HEADERS_FROM = 2, 4  # Fetch versions


class Range(NamedTuple):
    """Offsets of one partition, which is named as its folder is; `end` is exclusive."""

    log: str
    start: int
    end: int

    def __str__(self) -> str:
        topic, _, partition = self.log.rpartition("-")
        return f"{topic}:{partition}:{self.start}:{self.end}"


class Delivered(NamedTuple):
    """A record as a consumer handed it out; headers is None where the consumer has none."""

    offset: int
    key: bytes | None
    value: bytes | None
    timestamp: int | None
    headers: list[tuple[str, bytes | None]] | None

    def known_to(self, other: Delivered | None) -> Delivered:
        """Without the headers, where the consumer that handed out `other` has none."""
        return self._replace(headers=None) if other and other.headers is None else self


@dataclass(frozen=True)
class Program:
    """A consumer with its settings.

    fetch_version: the one it sends; None: its newest, whichever that is.
    version: of the broker that it is told it speaks to.
    fetch_cap: what the tap caps Fetch at, for a client that asks which versions there are.
    site: the folder of build/clients with its packages; None: they are in .venv, or it is a program of the system.
    cannot_read: logs that it fails on, whoever serves them.
    zero_is_none: it cannot tell a timestamp of 0 from none.
    """

    name: str
    driver: str
    fetch_version: int | None = None
    version: str | None = None
    fetch_cap: int | None = None
    site: str | None = None
    cannot_read: frozenset[str] = frozenset()
    zero_is_none: bool = False

    def __str__(self) -> str:
        return self.name

    def has(self, since: int) -> bool:
        """Whether its Fetch version is `since` or a later one."""
        return self.fetch_version is None or self.fetch_version >= since

    @property
    def magic(self) -> int:
        """The newest format that its Fetch version asks for."""
        return 2 if self.has(4) else 1 if self.has(2) else 0

    def start(
        self,
        tap: Tap,
        ranges: Iterable[Range],
        *,
        isolation: str = UNCOMMITTED,
        group: str | None = None,
        fetch_bytes: int | None = None,
        errors: IO[str] | int = subprocess.PIPE,
    ) -> subprocess.Popen[str]:
        """A process that reads ranges through the tap; its output is lines of JSON (drivers/driver.py)."""
        tap.fetch_cap = self.fetch_cap
        tap.start_over()
        options = {
            "--version": self.version,
            "--group": group,
            "--isolation": isolation,
            "--fetch-bytes": fetch_bytes,
        }
        told = [str(word) for option in options.items() if option[1] is not None for word in option]
        environment = {**os.environ, "PYTHONWARNINGS": "ignore::SyntaxWarning"}
        if self.site is not None:
            environment["PYTHONPATH"] = str(site(self.site))
        return subprocess.Popen(
            [sys.executable, str(DRIVERS / self.driver), tap.bootstrap, *map(str, ranges), *told],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )

    def run(
        self, tap: Tap, ranges: Iterable[Range], *, isolation: str = UNCOMMITTED, group: str | None = None
    ) -> Reading:
        """Read ranges, to their ends or until it fails."""
        with self.start(tap, ranges, isolation=isolation, group=group) as process:
            output, logged = process.communicate()  # it has a deadline of its own
        return Reading(process.returncode, logged, _by_log(output), list(tap.fetches))


@dataclass(frozen=True)
class Reading:
    """What one run of a program gave."""

    status: int
    errors: str
    records: dict[str, list[Delivered]]
    fetches: list[Fetch]

    def fetches_of(self, log: str) -> list[Fetch]:
        return [fetch for fetch in self.fetches if f"{fetch.topic}-{fetch.partition}" == log]


def _by_log(lines: str) -> dict[str, list[Delivered]]:
    records: dict[str, list[Delivered]] = {}
    for line in lines.splitlines():
        told = json.loads(line)
        records.setdefault(f"{told['topic']}-{told['partition']}", []).append(_delivered(told))
    return records


def _delivered(told: dict[str, Any]) -> Delivered:
    headers = told.get("headers")
    return Delivered(
        told["offset"],
        _bytes(told["key"]),
        _bytes(told["value"]),
        told["timestamp"],
        None if headers is None else [(key, _bytes(value)) for key, value in headers],
    )


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else b64decode(text)


LZ4_OF_V0 = frozenset({"legacy-v0-0", "upgraded-0"})  # which comes unconverted from Fetch v2 on
APPEND_TIMES = frozenset({"append-time-0", "legacy-v1-0"})  # whose bit in v1 is read as a codec
GAPS = frozenset({"compacted-0"})  # in wrappers of v1, whose offsets are counted from their last one

OLD_KAFKA_PYTHON = [
    Program(f"kafka-python-1.3.5-v{fetch}", "old_kafka_python.py", fetch, version, site="kafka-python-1.3.5")
    for fetch, version in enumerate(("0.8.2", "0.9", "0.10", "0.10.1"))
]
PYKAFKA = [
    Program(
        f"pykafka-2.8.0-v{fetch}",
        "pykafka_.py",
        fetch,
        version,
        site="pykafka-2.8.0",
        cannot_read=LZ4_OF_V0 | APPEND_TIMES | GAPS if fetch == 2 else frozenset(),
    )
    for fetch, version in enumerate(("0.8.2", "0.9.0", "0.10.0"))
]
LIBRDKAFKA = [
    Program(
        f"{name}-{label}", f"{name}.py", fetch, version, cap, zero_is_none=name == "kcat" or fetch is not None
    )
    for name in ("kcat", "confluent")
    for label, fetch, version, cap in (
        ("v0", 0, "0.8.2.2", None),
        ("v1", 1, "0.9.0.1", None),
        ("v2", 2, None, 2),
        ("v3", 3, None, 3),
        ("current", None, None, None),
    )
]
KAFKA_PYTHON = [
    Program("kafka-python-v0", "kafka_python.py", 0, "0.8.2"),
    Program("kafka-python-v1", "kafka_python.py", 1, "0.9"),
    Program("kafka-python-v2", "kafka_python.py", 2, "0.10"),
    Program("kafka-python-v3", "kafka_python.py", 3, "0.10.1"),
    Program("kafka-python-v5", "kafka_python.py", 5, "0.11"),
    Program("kafka-python-current", "kafka_python.py"),
]
AIOKAFKA = [Program("aiokafka-current", "aiokafka_.py", cannot_read=LZ4_OF_V0)]
PROGRAMS = [*OLD_KAFKA_PYTHON, *PYKAFKA, *LIBRDKAFKA, *KAFKA_PYTHON, *AIOKAFKA]
TRANSACTIONAL = [program for program in PROGRAMS if program.fetch_version is None]
# The newest release of each family, told nothing of the broker's version where it asks for that.
NEWEST = {program.name for program in TRANSACTIONAL} | {PYKAFKA[-1].name, OLD_KAFKA_PYTHON[-1].name}


def parameters(programs: Iterable[Program]) -> list[ParameterSet]:
    """Mark each program that is not the newest of its family: it runs with `make test-all`."""
    return [
        pytest.param(one, id=one.name, marks=[] if one.name in NEWEST else pytest.mark.full)
        for one in programs
    ]
