"""A child that is stopped and goes on: nothing happens in it meanwhile, whatever the machine's load."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def frozen(child: int) -> Iterator[None]:
    """Stop a child of this process for the block. Every thread of it has stopped when the block begins."""
    try:
        os.kill(child, signal.SIGSTOP)
        os.waitpid(child, os.WUNTRACED)
        yield
    finally:
        os.kill(child, signal.SIGCONT)
