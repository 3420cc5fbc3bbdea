"""The options of a gateway, in addition to those of any server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kafkafmt._util.sizes import MIB
from kafkafmt.codecs import DEFAULT_MAX_DECOMPRESSED_BYTES
from kafkafmt.gateway.cluster import Address
from kafkafmt.server.options import ServerOptions
from kafkafmt.types import Codec


@dataclass(frozen=True, kw_only=True)
class GatewayOptions(ServerOptions):
    """How a cluster is offered. Sizes are in bytes.

    servers: addresses of brokers to begin with; the others are learned from these.
    client_config: options of kafka-python's clients for the connections to brokers.
    is_committed: whether consumers older than Fetch v4 get records of committed transactions only.
    zstd_fallback: the codec in which clients without zstd support receive zstd batches; None: they get an error code.
    max_fetch_bytes: the most bytes of records that are requested from a broker for an old consumer at a time.
    max_decompressed_bytes: the limit for one batch.
    """

    servers: tuple[Address, ...]
    client_config: Mapping[str, Any] = field(default_factory=dict, repr=False)  # may contain passwords
    is_committed: bool = False
    zstd_fallback: Codec | None = None
    max_fetch_bytes: int = 4 * MIB
    max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES
    allow_produce: bool = True
