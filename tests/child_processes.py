"""Processes that a test starts, and that do not outlive it, also if it fails."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any


@contextmanager
def started(command: Sequence[object], **options: Any) -> Iterator[subprocess.Popen[Any]]:
    """Start a process, and kill it at the end of the block if it has not ended by then.

    options: of subprocess.Popen. With `start_new_session` all processes that it started are killed with it.
    """
    with subprocess.Popen([str(part) for part in command], **options) as process:
        try:
            yield process
        finally:
            process.kill()
            if options.get("start_new_session"):
                with suppress(ProcessLookupError):  # all of them have ended
                    os.killpg(process.pid, signal.SIGKILL)
