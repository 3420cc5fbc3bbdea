"""The events of a server. `Metrics` ignores them, for a server without metrics."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from kafkafmt.memory import MemoryBudget

# answered: with a response, which may be an error code. failed: the connection ended before that.
Outcome: TypeAlias = Literal["answered", "failed"]
# Why a connection is closed: no TLS session; no authentication; a request without an answer; too many connections;
# memory that others wait for.
Refusal: TypeAlias = Literal["tls", "sasl", "request", "limit", "memory"]


class Metrics:
    """The events of a server, which are not counted."""

    def connection_opened(self) -> None:
        """A connection was accepted; `connection_closed` follows."""

    def connection_closed(self) -> None:
        """A connection was closed."""

    def connection_refused(self, reason: Refusal) -> None:
        """The server closed a connection, for this reason."""

    def request_served(self, api_key: int, version: int, outcome: Outcome) -> None:
        """A request is done, and its response sent if there is one."""

    def error_sent(self, error_code: int) -> None:
        """A response, or a partition in it, carries an error code other than 0."""

    def fetch_sent(self, version: int, zero_copy_bytes: int, converted_bytes: int) -> None:
        """Records of a fetch response were sent: by sendfile, and by conversion, whose bytes include padding."""

    @contextmanager
    def conversion(self) -> Iterator[None]:
        """Enter this context for the conversion of one chunk."""
        yield

    def records_converted(self, count: int) -> None:
        """Records were converted to an older format."""

    def records_appended(self, batches: int, size_bytes: int) -> None:
        """Batches of a producer were appended to the log."""

    def memory_used(self, budget: MemoryBudget) -> None:
        """The bytes held of a budget, or its waiting tasks, have changed."""

    def memory_held(self, size_bytes: int) -> None:
        """Set the bytes that all chunks take that are being sent."""

    def memory_awaited(self, conversions: int) -> None:
        """Set the number of conversions that wait for memory."""
