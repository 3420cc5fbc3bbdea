"""The events that one module logs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import structlog
from structlog.testing import capture_logs
from structlog.typing import EventDict


@contextmanager
def logged_events(module: str) -> Iterator[list[EventDict]]:
    """Collect what a module logs, also if a command that ran in this process before has configured its logger."""
    with pytest.MonkeyPatch.context() as patched, capture_logs() as events:
        patched.setattr(f"{module}._log", structlog.get_logger())
        yield events
