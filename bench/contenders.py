"""Starts the contenders, one process each, and asks them in turn; a contender that cannot run tells why."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from bench import BUILD, ROOT
from bench.peers.names import AIOKAFKA, FLOOR, JAVA, KAFKA_PYTHON, OURS

PEERS = ROOT / "bench" / "peers"
# As Kafka's own start script sets them, and a heap that is large enough not to matter.
JVM_OPTIONS = [
    "-server",
    "-Xms2g",
    "-Xmx2g",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
]


class UnavailableError(Exception):
    """The contender cannot run here; the message says why."""


class Contender:
    """A process that measures what it is asked for; see `peers.protocol`."""

    def __init__(self, command: list[str], log: Path) -> None:
        with log.open("w") as errors:
            self._process = subprocess.Popen(
                command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
            )
        self._log = log

    def ask(self, work: str, path: Path) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{work} {path}\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise UnavailableError(f"it ended on {work}: see {self._log.relative_to(ROOT)}")
        measured: dict[str, Any] = json.loads(answer)
        return measured

    def close(self) -> None:
        self._process.communicate()


class Contenders:
    """Each started, by its command, when it is first asked; what is asked twice is measured once.

    purpose: what they are for, in the names of their logs.
    """

    def __init__(self, commands: Mapping[str, Callable[[], list[str]]], purpose: str) -> None:
        BUILD.mkdir(parents=True, exist_ok=True)
        self._commands = commands
        self._purpose = purpose
        self._running: dict[str, Contender] = {}
        self._answers: dict[tuple[str, str, Path, int], dict[str, Any] | None] = {}
        self.unavailable: dict[str, str] = {}

    def __enter__(self) -> Contenders:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for contender in self._running.values():
            contender.close()

    def ask(self, name: str, work: str, path: Path, turn: int = 0) -> dict[str, Any] | None:
        """The measurement, or None where the contender cannot run or has no such work.

        turn: of a work that is measured several times.
        """
        asked = name, work, path, turn
        if asked not in self._answers:
            self._answers[asked] = self._ask(name, work, path)
        return self._answers[asked]

    def _ask(self, name: str, work: str, path: Path) -> dict[str, Any] | None:
        if name in self.unavailable:
            return None
        try:
            if name not in self._running:
                log = BUILD / f"{self._purpose}-{name}.log"
                self._running[name] = Contender(self._commands[name](), log)
            answer = self._running[name].ask(work, path)
        except UnavailableError as reason:
            self.unavailable[name] = str(reason)
            return None
        return None if "error" in answer else answer


def own(module: str, *arguments: str) -> Callable[[], list[str]]:
    """The command of a module that runs in this Python."""
    return lambda: [sys.executable, "-m", module, *arguments]


def peer(module: str, *arguments: str) -> Callable[[], list[str]]:
    """The command of a module that runs in the peers' own Python."""
    return lambda: [str(_peers_python()), "-m", module, *arguments]


def _peers_python() -> Path:
    """The Python of the peers' own venv, made where it is absent or made from other requirements."""
    folder = ROOT / "build" / "bench-venv"
    folder.parent.mkdir(exist_ok=True)
    with (folder.parent / "bench-venv.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # tests run two benchmarks at a time
        _install_peers(folder)
    return folder / "bin" / "python"


def _install_peers(folder: Path) -> None:
    requirements, stamp = PEERS / "requirements.txt", folder / "installed-from"
    if stamp.exists() and stamp.read_text() == requirements.read_text():
        return
    print("Installing the peers into build/bench-venv.", file=sys.stderr)
    venv.create(folder, clear=True, with_pip=True)
    pip = [str(folder / "bin" / "python"), "-m", "pip", "-q", "--disable-pip-version-check"]
    done = subprocess.run([*pip, "install", "-r", str(requirements)], capture_output=True, text=True)
    if done.returncode:
        raise UnavailableError(f"pip: {_first_line(done.stderr)}")
    stamp.write_text(requirements.read_text())


def _java() -> list[str]:
    home = os.environ.get("JAVA_HOME")
    folder = str(Path(home) / "bin") if home else None
    java, javac = (shutil.which(program, path=folder) for program in ("java", "javac"))
    if java is None or javac is None:
        raise UnavailableError("no JDK: set JAVA_HOME to one, or install one")
    fetched = subprocess.run(
        [sys.executable, "tests/broker/jars.py", "kafka"], cwd=ROOT, capture_output=True, text=True
    )
    if fetched.returncode:
        raise UnavailableError(_first_line(fetched.stderr))
    classes, jars = BUILD / "classes", f"{fetched.stdout.strip()}/*"
    command = [javac, "-d", str(classes), "-cp", jars, str(PEERS / "KafkaBench.java")]
    compiled = subprocess.run(command, capture_output=True, text=True)
    if compiled.returncode:
        raise UnavailableError(f"javac: {_first_line(compiled.stderr)}")
    return [java, *JVM_OPTIONS, "-cp", f"{classes}{os.pathsep}{jars}", "KafkaBench"]


def _first_line(text: str) -> str:
    return next(iter(text.strip().splitlines()), "no message")


COMMANDS: dict[str, Callable[[], list[str]]] = {
    OURS: own("bench.peers.ours"),
    FLOOR: own("bench.peers.floors"),
    AIOKAFKA: peer("bench.peers.python_client", AIOKAFKA),
    KAFKA_PYTHON: peer("bench.peers.python_client", KAFKA_PYTHON),
    JAVA: _java,
}
