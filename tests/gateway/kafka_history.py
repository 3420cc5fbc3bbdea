"""Which release of Kafka brought each error code, and each version of an API: out of the jars of its clients.

`tools/with_java.sh .venv/bin/python tests/gateway/kafka_history.py` writes kafka_history.tsv beside this file:

    error CODE RELEASE NAME RETRIABLE
    api KEY VERSION RELEASE

Names, and whether an error is retriable, are those of the newest release that is asked.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
if __name__ == "__main__":
    sys.path.insert(0, str(TESTS))

from broker.jars import JarSet, java_clients, scala_clients  # noqa: E402
from oracle.kafka import java  # noqa: E402

PROGRAM = Path(__file__).with_name("History.java")
HISTORY = Path(__file__).with_name("kafka_history.tsv")
# The last patch of each release whose clients speak versions that Kafka 4 has dropped, and of the one after these.
SCALA = ("0.8.0", "0.8.1.1", "0.8.2.2")
JAVA = (
    "0.8.2.2",
    "0.9.0.1",
    "0.10.0.1",
    "0.10.1.1",
    "0.10.2.2",
    "0.11.0.3",
    "1.0.2",
    "1.1.1",
    "2.0.1",
    "2.1.1",
)

Release = tuple[int, ...]
# 0.8.2 has layouts of JoinGroup and Heartbeat, which none of its brokers answers, nor has any client of it that sends.
PROTOTYPE: Release = (0, 8, 2)
NEWEST_KEY_OF_PROTOTYPE = 10


@dataclass(frozen=True)
class KnownError:
    """An error code, and the first release that knew it."""

    release: Release
    name: str
    is_retriable: bool


@dataclass
class History:
    """errors: by code. versions: the release of each version, by API key."""

    errors: dict[int, KnownError] = field(default_factory=dict)
    versions: dict[tuple[int, int], Release] = field(default_factory=dict)

    def add(self, release: Release, told: str) -> None:
        """Take over what a release knows, the oldest first."""
        for line in told.splitlines():
            kind, number, *more = line.split("\t")
            if kind == "error":
                first = self.errors[int(number)].release if int(number) in self.errors else release
                self.errors[int(number)] = KnownError(first, more[0], more[1] == "true")
            elif release != PROTOTYPE or int(number) <= NEWEST_KEY_OF_PROTOTYPE:
                for version in range(int(more[0]) + 1):
                    self.versions.setdefault((int(number), version), release)

    def lines(self) -> list[str]:
        errors = [
            f"error\t{code}\t{dotted(known.release)}\t{known.name}\t{str(known.is_retriable).lower()}"
            for code, known in sorted(self.errors.items())
        ]
        return errors + [
            f"api\t{key}\t{version}\t{dotted(release)}"
            for (key, version), release in sorted(self.versions.items())
        ]


def release_of(version: str) -> Release:
    """The release of a patch: 0.10.1.1 is one of 0.10.1, 1.1.1 one of 1.1."""
    numbers = tuple(map(int, version.split(".")))
    return numbers[:3] if numbers[0] == 0 else (*numbers[:2], 0)


def dotted(release: Release) -> str:
    return ".".join(map(str, release))


def recorded() -> History:
    """The history as it is in the file."""
    history = History()
    for line in HISTORY.read_text().splitlines():
        kind, number, *more = line.split("\t")
        if kind == "error":
            release = tuple(map(int, more[0].split(".")))
            history.errors[int(number)] = KnownError(release, more[1], more[2] == "true")
        else:
            history.versions[int(number), int(more[0])] = tuple(map(int, more[1].split(".")))
    return history


def asked() -> History:
    """The history as the jars tell it."""
    history = History()
    sets = [(version, scala_clients(version)) for version in SCALA]
    sets += [(version, java_clients(version)) for version in JAVA]
    for version, jars in sets:
        history.add(release_of(version), run(jars))
    return history


def run(jars: JarSet) -> str:
    command = [java("java"), "-XX:TieredStopAtLevel=1", "-cp", jars.classpath(), str(PROGRAM)]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout


if __name__ == "__main__":
    HISTORY.write_text("\n".join(asked().lines()) + "\n")
