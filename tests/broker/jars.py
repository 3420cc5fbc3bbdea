"""The jars of Kafka 3.9.1 (broker, tools and clients), fetched by Maven into build/ once.

`python tests/broker/jars.py` fetches them where they are absent and prints their folder. They are copied
beside their place and renamed into it, so a fetch that was killed leaves nothing that looks complete.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

KAFKA_VERSION = "3.9.1"
ROOT = Path(__file__).resolve().parents[2]
POM = Path(__file__).with_name("pom.xml")
JARS = ROOT / "build" / "jars" / f"kafka-{KAFKA_VERSION}"
LAST = f"kafka_2.13-{KAFKA_VERSION}.jar"  # moved in last: where it is, all are


class MissingJarsError(Exception):
    """The jars are not there and could not be fetched; the message is one line that says what to do."""


def _present() -> bool:
    return (JARS / LAST).is_file()


def fetch() -> Path:
    """The folder of the jars, after fetching them where they are absent."""
    if _present():
        return JARS
    maven = shutil.which("mvn")
    if maven is None:
        raise MissingJarsError("mvn is missing, and Kafka's jars come through it: apt-get install maven")
    JARS.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="fetching-", dir=JARS.parent) as partial:
        goal = ["dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={partial}"]
        command = [maven, "-q", "-B", "-f", str(POM), *goal]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode:
            raise MissingJarsError(f"mvn could not fetch Kafka's jars: {_first_error(done.stdout)}")
        JARS.mkdir(exist_ok=True)
        for jar in sorted(Path(partial).iterdir(), key=lambda jar: jar.name == LAST):
            jar.replace(JARS / jar.name)
    return JARS


def _first_error(output: str) -> str:
    lines = [line for line in output.splitlines() if "ERROR" in line] or output.splitlines() or ["no output"]
    return lines[0].strip()


def classpath() -> str:
    """Every jar, as Java's class path takes it."""
    return str(fetch() / "*")


if __name__ == "__main__":
    try:
        print(fetch())
    except MissingJarsError as missing:
        sys.exit(str(missing))
