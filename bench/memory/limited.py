"""A program that may take so much beyond its start, and what the operating system says it took.

The program imports what it needs, has its threads share an arena, and is then refused address space beyond its limit
(RLIMIT_AS). It prints its start as a line of JSON, what happens as further lines, and its result as the last one. The
parent reads /proc/PID/status all the while, so that there are figures of a program that was killed, too.
"""

from __future__ import annotations

import json
import os
import resource
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench import ROOT
from kafkafmt.memory.process import bound_process

AMPLE_BYTES = 1 << 34  # no limit that anything here would come to
_SAMPLE_SECONDS = 0.01
_NAMES = ("VmPeak", "VmSize", "RssAnon")
# As bound_process() has it, which is called once pyarrow is imported here.
_ENVIRONMENT = {"ARROW_DEFAULT_MEMORY_POOL": "system"}


def status_bytes(process: int | str = "self") -> dict[str, int]:
    """VmPeak, VmSize and RssAnon; empty where the process has ended."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    fields = (line.partition(":") for line in lines)
    return {name: int(text.split()[0]) * 1024 for name, _, text in fields if name in _NAMES}


def begin(memory_bytes: int) -> dict[str, int]:
    """In the program, after its imports: from here on it has `memory_bytes` more. Returns the status it starts with."""
    bound_process()
    start = status_bytes()
    most = start["VmSize"] + memory_bytes
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    tell({"start": start})
    return start


def tell(what: Mapping[str, Any]) -> None:
    print(json.dumps(what), flush=True)


def end(result: Mapping[str, Any]) -> None:
    """In the program, at its end: its result and its peaks."""
    tell({"result": {**result, "processor_seconds": time.process_time()}, "end": status_bytes()})


@dataclass
class Run:
    """peak bytes: above the start. error: the last line of what it said, where it did not complete."""

    seconds: float = 0.0
    virtual_peak_bytes: int = 0
    resident_peak_bytes: int = 0
    told: list[dict[str, Any]] = field(default_factory=list)
    result: dict[str, Any] | None = None
    error: str = ""


def run(module: str, arguments: Sequence[str], log: Path) -> Run:
    """Run `python -m module` to its end; what it writes to stderr goes to `log`."""
    with log.open("w") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            cwd=ROOT,
            env={**os.environ, **_ENVIRONMENT},
            stdout=subprocess.PIPE,
            stderr=errors,
        )
        assert process.stdout is not None
        watched = _Watched(process)
        watched.until_ended()
    done = watched.run
    if process.returncode:
        done.result = None
        done.error = _reason(process.returncode, log)
    return done


class _Watched:
    """Reads the program's lines, and between them its status."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.run = Run()
        self._process = process
        self._start: dict[str, int] = {}
        self._started = 0.0
        self._rest = b""

    def until_ended(self) -> None:
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        with selectors.DefaultSelector() as selector:
            selector.register(descriptor, selectors.EVENT_READ)
            while True:
                if selector.select(_SAMPLE_SECONDS):
                    data = os.read(descriptor, 1 << 16)
                    if not data:
                        break
                    self._read(data)
                if self._start:
                    self._sample(status_bytes(self._process.pid))
        self._process.wait()
        self.run.seconds = time.monotonic() - self._started

    def _read(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            told = json.loads(line)
            if "start" in told:
                self._start, self._started = told["start"], time.monotonic()
            elif "result" in told:
                self.run.result = told["result"]
                self._sample(told["end"])
            else:
                self.run.told.append(told)

    def _sample(self, status: Mapping[str, int]) -> None:
        """VmPeak tells nothing before it grows: imports may have had more for a moment. Pages of libraries, which are
        mapped from the start and read in as they are used, are not counted as resident.
        """
        if not status:
            return
        virtual = status["VmPeak"] if status["VmPeak"] > self._start["VmPeak"] else status["VmSize"]
        run, start = self.run, self._start
        run.virtual_peak_bytes = max(run.virtual_peak_bytes, virtual - start["VmSize"])
        run.resident_peak_bytes = max(run.resident_peak_bytes, status["RssAnon"] - start["RssAnon"])


def _reason(status: int, log: Path) -> str:
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    last = lines[-1] if lines else ""
    return f"{signal.Signals(-status).name}: {last}" if status < 0 else last
