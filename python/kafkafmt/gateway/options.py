"""The options of a gateway, in addition to those of any server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from kafkafmt._util.sizes import MIB
from kafkafmt.codecs import DEFAULT_MAX_DECOMPRESSED_BYTES
from kafkafmt.gateway.broker_ports import BrokerPorts
from kafkafmt.gateway.cluster import Address
from kafkafmt.gateway.identities import Identities
from kafkafmt.server.options import ServerOptions
from kafkafmt.server.topics_file import TopicsFile
from kafkafmt.types import Codec


@dataclass(frozen=True, kw_only=True)
class GatewayOptions(ServerOptions):
    """How a cluster is offered. Sizes are in bytes.

    servers: addresses of brokers to begin with; the others are learned from these.
    client_config: options of kafka-python's clients for the connections to brokers.
    identities: how users of `users` authenticate at brokers; None: all as `client_config` says.
    passes_credentials: whether clients' own names and passwords authenticate at brokers (`UncheckedUsers`).
    topics_file: whether topics are converted for old consumers; None: as an older cluster says, else all are.
    broker_ports: a port for each broker, in addition to the port for all of them; None: no such ports.
    is_committed: whether consumers older than Fetch v4 get records of committed transactions only.
    zstd_fallback: the codec in which clients without zstd support receive zstd batches; None: they get an error code.
    max_fetch_bytes: the most bytes of records that are requested from a broker for an old consumer at a time.
    max_decompressed_bytes: the limit for one batch.
    """

    servers: tuple[Address, ...]
    client_config: Mapping[str, Any] = field(default_factory=dict, repr=False)  # may contain passwords
    identities: Identities | None = None
    passes_credentials: bool = False
    topics_file: TopicsFile | None = None
    broker_ports: BrokerPorts | None = None
    is_committed: bool = False
    zstd_fallback: Codec | None = None
    max_fetch_bytes: int = 4 * MIB
    max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES
    allow_produce: bool = True

    def reload(self) -> GatewayOptions:
        """Return these options with the files of users, identities and topics read again. Raises IniError, OSError."""
        return replace(
            self,
            users=None if self.users is None else self.users.reload(),
            identities=None if self.identities is None else self.identities.reload(),
            topics_file=None if self.topics_file is None else self.topics_file.reload(),
        )
