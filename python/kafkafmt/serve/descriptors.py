"""The files that a process may have open: sockets of connections, segments, and its own.

Where they run out, neither connections nor segments are to be had; so each has its part.
"""

from __future__ import annotations

import contextlib
import resource
import sys

_OPEN_SEGMENTS, _OPEN_LOGS = 512, 128
# For the segments that stay open, those that only responses have open by now, the logs that are appended to, and what
# is the process' own.
_RESERVED = 2 * _OPEN_SEGMENTS


def raise_limit() -> None:
    """Let this process, and those it starts, have as many files open as the system lets it."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):  # macOS takes less than it says
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def most_connections() -> int:
    """How many connections this process may have: all files but those reserved, or half, where they are few."""
    files = _most_files()
    return max(files - _RESERVED, files // 2)


def most_open_segments() -> int:
    """How many segments may stay open: a quarter of all files, where they are few."""
    return min(_OPEN_SEGMENTS, _most_files() // 4)


def most_open_logs() -> int:
    """How many logs, of two files each, may stay open to be appended to: a sixteenth of all, where they are few."""
    return min(_OPEN_LOGS, _most_files() // 32)


def _most_files() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft
