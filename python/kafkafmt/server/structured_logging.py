"""Structured logs on standard error (library: structlog): JSON lines, or text for a terminal.

    log = structlog.get_logger()
    log.info("listening", host=host, port=port)

Log records of other libraries through `logging`, such as asyncio's, have the same format. Fields are bound once with
`structlog.contextvars`: they apply to all events of the task that binds them. A connection is a task.
"""

from __future__ import annotations

import logging
import math
import re
import sys
import time
from collections.abc import Callable, Hashable
from copy import copy
from io import StringIO
from typing import TextIO

import structlog

from kafkafmt._util.visible import visible
from kafkafmt.server.options import LogFormat, LogLevel

_RATE_SECONDS, _MAX_KEYS = 10.0, 1024
# The loggers of connections to brokers, and of kafka-python, which logs an error for each attempt of many a second.
_CONNECTIONS = "kafkafmt.client.broker_connection"
_KAFKA_PYTHON = "kafka."
_NUMBERS = re.compile(r"\d+")
# What kafka-python logs of a connection that a broker has closed, before a line with the reason; and its advice to
# programmers.
_DROPPED = (
    "%s: socket disconnected",
    "%s: Error receiving network data",
    "%s: Error sending request data",
    "%s: Abort (%s)",
    "Rebalance listener ",
)
# Its errors that are usual while a broker restarts: it connects again. Refused credentials stay errors. So do errors of
# TLS, except for a connection that is closed.
_LOWERED = (
    "%s: Connection lost: ",
    "Connection failed: ",
    "Metadata refresh: failed ",
    "Error sending %s to node %s ",
)
_TLS_ERROR = re.compile(r"\[SSL: (?!UNEXPECTED_EOF)")
_MAX_CLIENT_ID = 200  # characters: clients choose it, and each line about them contains it


def configure_logs(log_format: LogFormat, level: LogLevel) -> None:
    """Set up the logs of this process. `auto` is text if standard error is a terminal, else JSON."""
    if log_format == "auto":
        log_format = "text" if sys.stderr.isatty() else "json"
    shared: list[structlog.types.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    # Clients choose some values: `repr` escapes control sequences for the terminal.
    text_renderer = structlog.dev.ConsoleRenderer(
        colors=sys.stderr.isatty(), repr_native_str=True, exception_formatter=_write_traceback
    )
    rendering: list[structlog.types.Processor] = (
        [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
        if log_format == "json"
        else [_with_visible_event, text_renderer]
    )
    handler = _Handler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.ExtraAdder()],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *rendering],
        )
    )
    handler.addFilter(_RateLimitedClients())
    logging.basicConfig(handlers=[handler], level=level.upper(), force=True)
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )


def _with_visible_event(_: object, __: str, event: structlog.types.EventDict) -> structlog.types.EventDict:
    """Escape control characters in the text of an event: other libraries put names and messages of brokers into it."""
    event["event"] = visible(str(event["event"]))
    return event


def _write_traceback(target: TextIO, exc_info: structlog.types.ExcInfo) -> None:
    """Write a traceback, indented: the lines of a message that others chose must not look like lines of the log.

    Other tracebacks than the plain one show local variables, which may be passwords.
    """
    text = StringIO()
    structlog.dev.plain_traceback(text, exc_info)
    for line in text.getvalue().strip("\n").split("\n"):
        target.write(f"\n  {visible(line)}")


class RateLimitedLog:
    """Limits frequent events in the log: each kind of event is logged once in ten seconds at most."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        # By kind: when it was last logged, and how often it has occurred since.
        self._events: dict[Hashable, tuple[float, int]] = {}

    def write(self, log: Callable[..., object], kind: Hashable, event: str, /, **fields: object) -> None:
        """Log an event with `log`, such as `log.error`. Adds how often its kind occurred since it was last logged."""
        times = self.count(kind)
        if times:
            log(event, **fields, times=times)

    def count(self, kind: Hashable) -> int:
        """Count an event. Returns how often its kind occurred since it was last logged; 0 if it must not be logged."""
        now = self._clock()
        logged, times = self._events.get(kind, (-math.inf, 0))
        if now - logged < _RATE_SECONDS:
            self._events[kind] = logged, times + 1
            return 0
        if len(self._events) >= _MAX_KEYS:
            self._events.clear()
        self._events[kind] = now, 0
        return times + 1


class _Handler(logging.StreamHandler):  # type: ignore[type-arg]  # not generic before Python 3.11
    """Passes copies of records to its filters: a filter that changes a record must not change it for other handlers."""

    def handle(self, record: logging.LogRecord) -> bool:
        return super().handle(copy(record))


class _RateLimitedClients(logging.Filter):
    """Limits the log records of clients of brokers as `RateLimitedLog` does. Those with the same text are one kind.

    Numbers in the text of kafka-python do not count. If a broker is down, each client of a gateway tries to connect
    several times a second. kafka-python's errors of connections that it opens again are warnings here. A record is
    changed for this, so it must be a copy.
    """

    def __init__(self) -> None:
        super().__init__()
        self._limited_log = RateLimitedLog()

    def filter(self, record: logging.LogRecord) -> bool:
        if record.name == _CONNECTIONS:
            kind = record.getMessage()
        elif record.name.startswith(_KAFKA_PYTHON) and record.levelno >= logging.WARNING:
            if str(record.msg).startswith(_DROPPED):
                return False
            if str(record.msg).startswith(_LOWERED) and _may_pass(record):
                record.levelno, record.levelname = logging.WARNING, "WARNING"
                if not logging.getLogger().isEnabledFor(logging.WARNING):
                    return False
            kind = _NUMBERS.sub("0", record.getMessage())
        else:
            return True
        times = self._limited_log.count((record.name, kind))
        record.__dict__["times"] = times
        return times > 0


def _may_pass(record: logging.LogRecord) -> bool:
    """Return whether kafka-python may succeed when it tries again, by the error in the record."""
    arguments = record.args if isinstance(record.args, tuple) else ()
    if any(getattr(one, "retriable", True) is False for one in arguments):
        return False
    return _TLS_ERROR.search(record.getMessage()) is None


def bind_connection(connection: int, client: str) -> None:
    """Add the number of a connection and its client's address to all that this task logs from now on."""
    structlog.contextvars.bind_contextvars(connection=connection, client=client)


def bind_client_id(client_id: str | None) -> None:
    """Add the client ID to all that this task logs from now on."""
    structlog.contextvars.bind_contextvars(client_id=client_id and client_id[:_MAX_CLIENT_ID])
