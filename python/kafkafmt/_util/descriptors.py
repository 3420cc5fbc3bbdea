"""The limit on open files of a process (`RLIMIT_NOFILE`), and how connections, segments and logs share it.

A process that reaches the limit can neither accept connections nor open segments. So each of them has a maximum.
"""

from __future__ import annotations

import contextlib
import resource
import sys

_OPEN_SEGMENTS, _OPEN_LOGS = 512, 128
# For cached segments, for segments that only responses still hold open, for logs that are appended to, and for the
# other files of the process.
_RESERVED = 2 * _OPEN_SEGMENTS


def raise_limit() -> None:
    """Raise the limit on open files to the hard limit, for this process and the processes that it starts."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):  # macOS refuses its own hard limit
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def max_connections() -> int:
    """Return the maximum of connections: the limit on open files without the reserved ones, but at least half of it."""
    files = _max_files()
    return max(files - _RESERVED, files // 2)


def max_open_segments() -> int:
    """Return the maximum of cached open segments: 512, but at most a quarter of the limit on open files."""
    return min(_OPEN_SEGMENTS, _max_files() // 4)


def max_open_logs() -> int:
    """Return the maximum of logs open for appending: 128, but their files, two each, take at most 1/16 of the limit."""
    return min(_OPEN_LOGS, _max_files() // 32)


def _max_files() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft
