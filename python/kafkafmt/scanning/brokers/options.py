"""How the partitions of a cluster are read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from kafkafmt.codecs import DEFAULT_MAX_DECOMPRESSED_BYTES
from kafkafmt.scanning.brokers.clients import ClientConfig

DEFAULT_POLL_TIMEOUT_MS = 120_000


class OptionNames(NamedTuple):
    """The names of options in messages, as the user gives them."""

    skip_data_loss: str
    poll_timeout: str


@dataclass(frozen=True)
class BrokerOptions:
    """How the partitions of a cluster are read. It can be pickled.

    clients: its `isolation_level` is that of the reads.
    includes_control: read all stored batches, also control batches. Requires read_uncommitted.
    on_corrupt: `fail`, or `skip` to continue after a damaged batch with a warning.
    fails_on_data_loss: False to continue with the remaining records, with a warning.
    poll_timeout_ms: how long a read waits for a broker.
    verify: check the CRCs of batches, unless the clients are configured not to.
    max_decompressed_bytes: the most that a batch may decompress to, in reads of records.
    """

    clients: ClientConfig
    names: OptionNames
    includes_control: bool = False
    on_corrupt: str = "fail"
    fails_on_data_loss: bool = True
    poll_timeout_ms: int = DEFAULT_POLL_TIMEOUT_MS
    verify: bool = True
    max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES

    @property
    def checks_crcs(self) -> bool:
        """Whether the CRCs of batches are checked."""
        return self.verify and bool(self.clients.config.get("check_crcs", True))
