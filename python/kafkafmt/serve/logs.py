"""Structured logs on standard error (library: structlog): JSON lines, or text for a terminal.

    log = structlog.get_logger()
    log.info("listening", host=host, port=port)

What other libraries log through `logging`, asyncio among them, comes in the same form. What an event is about is
bound once: `structlog.contextvars` holds for the task that binds it, and a connection is a task.
"""

from __future__ import annotations

import logging
import math
import sys
import time
from collections.abc import Callable, Hashable

import structlog

from kafkafmt.serve.options import LogFormat, LogLevel

_SELDOM_SECONDS, _MOST_KEYS = 10.0, 1024
_MOST_CLIENT_ID = 200  # characters: clients choose them, and each line of theirs has it


def configure_logs(log_format: LogFormat, level: LogLevel) -> None:
    """Set up the logs of this process. `auto` is text where standard error is a terminal."""
    if log_format == "auto":
        log_format = "text" if sys.stderr.isatty() else "json"
    shared: list[structlog.types.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    # Clients choose some of the values: as Python writes texts, they hold no commands to a terminal.
    text_renderer = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), repr_native_str=True)
    rendering: list[structlog.types.Processor] = (
        [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
        if log_format == "json"
        else [text_renderer]
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.ExtraAdder()],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *rendering],
        )
    )
    logging.basicConfig(handlers=[handler], level=level.upper(), force=True)
    # kafka-python logs at DEBUG what it sends: all bytes in the one place, each request in the other.
    logging.getLogger("kafka.protocol.parser").setLevel(logging.INFO)
    logging.getLogger("kafka.net.connection").addFilter(_tells_no_credentials)
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


def _tells_no_credentials(record: logging.LogRecord) -> bool:
    """Is there no SASL request or response among the arguments? The one of PLAIN has the password in it."""
    arguments = record.args if isinstance(record.args, tuple) else ()
    return not any(type(one).__name__.startswith("Sasl") for one in arguments)


class Seldom:
    """Keeps what may come very often from filling the log: each kind of event is told of every so often."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._events: dict[
            Hashable, tuple[float, int]
        ] = {}  # when it was told of last, how often it came since

    def times(self, kind: Hashable) -> int:
        """To be called each time: how often it came since it was last told of; 0 where that was just now."""
        now = self._clock()
        told, times = self._events.get(kind, (-math.inf, 0))
        if now - told < _SELDOM_SECONDS:
            self._events[kind] = told, times + 1
            return 0
        if len(self._events) >= _MOST_KEYS:
            self._events.clear()
        self._events[kind] = now, 0
        return times + 1


def bind_connection(connection: int, client: str) -> None:
    """Bind all that this task logs from here on to a connection, by its number and its client's address."""
    structlog.contextvars.bind_contextvars(connection=connection, client=client)


def bind_client_id(client_id: str | None) -> None:
    """Bind what this task logs to what the client calls itself, too."""
    structlog.contextvars.bind_contextvars(client_id=client_id and client_id[:_MOST_CLIENT_ID])
