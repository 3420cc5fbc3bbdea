"""Open the cluster of a scan: `kafka://HOST:PORT[,HOST:PORT][/TOPIC,...]`, with settings of Kafka's clients."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from kafkafmt.client.client_config import underscored
from kafkafmt.client.raw_consumer import RawConsumer
from kafkafmt.scanning.arguments import parse_topics
from kafkafmt.scanning.brokers.clients import ClientConfig
from kafkafmt.scanning.brokers.options import DEFAULT_POLL_TIMEOUT_MS, BrokerOptions, OptionNames
from kafkafmt.scanning.brokers.source import BrokerSource
from kafkafmt.scanning.errors import ScanError
from kafkafmt.scanning.selection import topic_selection

if TYPE_CHECKING:
    from kafkafmt.scanning.options import LogReadOptions
    from kafkafmt.types import TopicPartition

_SCHEME = "kafka://"
_FORM = f"{_SCHEME}HOST:PORT[,HOST:PORT][/TOPIC,...]"
_SERVER = re.compile(r"(?:\[[^\]\s]+\]|[^\s:\[\],/]+):(?P<port>\d{1,5})")
_POLL_TIMEOUT = "poll.timeout.ms"
_NAMES = OptionNames(skip_data_loss="a new scan", poll_timeout=f"option {_POLL_TIMEOUT}")
# Options of consumers that arguments of a scan set, and others that have no effect on one.
_OF_ARGUMENTS = {
    "bootstrap_servers": "the URI has the brokers",
    "isolation_level": "isolation (--isolation) sets it",
}
_FIXED = {
    "auto_offset_reset": "a scan begins at its offsets",
    "check_crcs": "the argument verify sets it",
    "enable_auto_commit": "a scan commits no offsets",
    "fetch_raw_bytes": "a scan reads records",
    "group_id": "a scan commits no offsets",
    "keep_control_batches": "a scan reads records",
    "trim_first_batch": "a scan reads records",
}


class ClusterUri(NamedTuple):
    """The brokers of a URI, as for bootstrap.servers, and its topics: names and globs."""

    servers: str
    topics: tuple[str, ...]


def parse_cluster(uri: str) -> ClusterUri:
    """Parse the URI of a cluster. Raises ScanError, in one line.

    >>> parse_cluster("kafka://localhost:9092/orders,clicks-*")
    ClusterUri(servers='localhost:9092', topics=('orders', 'clicks-*'))
    """
    if "@" in uri:  # the text has a password, so it is not shown
        raise ScanError(f"expected {_FORM} without a user: options have names and passwords")
    servers, _, topics = uri.removeprefix(_SCHEME).partition("/")
    for server in servers.split(","):
        match = _SERVER.fullmatch(server)
        if match is None or not 0 < int(match["port"]) <= 65535:
            raise ScanError(f"{uri}: expected {_FORM} with ports from 1 to 65535, found {server!r}")
    names = tuple(topics.split(",")) if topics else ()
    if not all(names):
        raise ScanError(f"{uri}: expected {_FORM}, found a topic without a name")
    return ClusterUri(servers, names)


def cluster_source(
    uri: str, read: LogReadOptions, partitions: frozenset[TopicPartition] | None, options: Mapping[str, str]
) -> BrokerSource:
    """Return the source of the records of a cluster. Sends no request.

    read: what is read, and how; its paths are not used. options: settings of consumers, under Kafka's names, and
    `poll.timeout.ms`. Raises ScanError, in one line.
    """
    servers, topics = parse_cluster(uri)
    if topics and read.topics != parse_topics(None, partitions):
        raise ScanError(f"{uri}: expected topics in the URI or as an argument, found both")
    if read.from_segment_start or read.checks_overlaps is not None:
        name = "from_segment_start" if read.from_segment_start else "check_overlaps (--check-overlaps)"
        raise ScanError(f"{name}: expected it left out: brokers read the segments of a cluster")
    given = {**options, "bootstrap.servers": servers, "isolation.level": read.isolation}
    try:
        poll_timeout_ms = _milliseconds(given.pop(_POLL_TIMEOUT, str(DEFAULT_POLL_TIMEOUT_MS)))
        for name in options:
            if underscored(name) in _OF_ARGUMENTS:
                raise ValueError(f"option {name}: expected it left out: {_OF_ARGUMENTS[underscored(name)]}")
        clients = ClientConfig.parse(given, RawConsumer, _FIXED)
    except ValueError as error:
        raise ScanError(str(error)) from None
    brokers = BrokerOptions(
        clients,
        _NAMES,
        on_corrupt=read.on_corrupt,
        poll_timeout_ms=poll_timeout_ms,
        verify=read.verify,
        max_decompressed_bytes=read.max_decompressed_bytes,
    )
    chosen = topic_selection(topics) if topics else read.topics
    return BrokerSource(
        brokers, chosen, partitions, read.starting.timestamp, read.ending.timestamp, read.max_batch_bytes
    )


def _milliseconds(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise ValueError(f"option {_POLL_TIMEOUT}: expected milliseconds, 1 or more, found {text!r}")
    return int(text)
