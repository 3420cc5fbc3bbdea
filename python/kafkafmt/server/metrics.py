"""The events of a server. `Metrics` ignores them, for a server without metrics."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from kafkafmt.convert.options import ConversionStats

if TYPE_CHECKING:
    from kafkafmt.memory import MemoryBudget

# answered: with a response, which may be an error code. failed: the connection ended before that. passed: it went on to
# another server.
Outcome: TypeAlias = Literal["answered", "failed", "passed"]
# Why a connection is closed: no TLS session; no authentication; a request without an answer; too many connections;
# memory that others wait for.
Refusal: TypeAlias = Literal["tls", "sasl", "request", "limit", "memory"]


@dataclass
class Conversions:
    """The conversions of message formats for one request.

    records: those converted, by topic. size_bytes: what the client sent, or received, of converted partitions.
    """

    records: dict[str, int] = field(default_factory=dict)
    size_bytes: int = 0
    stats: ConversionStats = field(default_factory=ConversionStats)

    def add(self, topic: str, size_bytes: int, stats: ConversionStats) -> None:
        """Add the conversion for a partition."""
        if stats.records_converted:
            self.records[topic] = self.records.get(topic, 0) + stats.records_converted
            self.size_bytes += size_bytes
            self.stats.add(stats)


class ClientEvents:
    """The events of the connection of one client, which are not recorded."""

    def request_passed(self, api_key: int, version: int) -> None:
        """A request is passed on to another server."""

    def request_taken(self, api_key: int, version: int, client_id: str | None, body: Any) -> None:
        """A request is to be answered by this server. body: of kafka-python; None if its handler decodes it."""

    def converted(self, api_key: int, conversions: Conversions) -> None:
        """Records were converted for a request of the API Fetch or Produce."""


class Metrics:
    """The events of a server, which are not counted."""

    def client(self, address: str) -> ClientEvents:
        """Return the events of a connection from this address."""
        return ClientEvents()

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
        """Records were converted to an older format, for consumers."""

    def messages_converted(self, api_key: int, conversions: Conversions) -> None:
        """The conversions for a request of the API Fetch or Produce are done."""

    def records_appended(self, batches: int, size_bytes: int) -> None:
        """Batches of a producer were appended to the log."""

    def memory_used(self, budget: MemoryBudget) -> None:
        """The bytes held of a budget, or its waiting tasks, have changed."""

    def memory_held(self, size_bytes: int) -> None:
        """Set the bytes that all chunks take that are being sent."""

    def memory_awaited(self, conversions: int) -> None:
        """Set the number of conversions that wait for memory."""
