"""Legacy clients: those that use versions of APIs that brokers of Kafka 4 have dropped (KIP-896).

A client is told apart by its client id, its address, and the name and version of its software. Clients choose these and
may change them with each connection. So the number of clients is bounded, and so is what is kept of each: beyond
`MAX_CLIENTS` the client that was not seen for the longest time is left out, and counted.

Worker processes keep their clients in a file each, beside their metrics. A worker that replaces a dead one reads its
file, and the supervisor merges all files when it is asked.
"""

from __future__ import annotations

import asyncio
import json
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, NamedTuple

from kafka.protocol.api_key import ApiKey

from kafkafmt.server.metrics import ClientEvents, Conversions, Metrics
from kafkafmt.server.wire import api_name

# The first versions that brokers of Kafka 4 take, of the APIs that they take from a later version on than 0. JoinGroup
# is among them for 4.0.0 alone. Kafka 4 lists Produce from 0 on, for librdkafka, but refuses what is below 3.
FIRST_VERSIONS: Mapping[int, int] = {
    ApiKey.Produce: 3,
    ApiKey.Fetch: 4,
    ApiKey.ListOffsets: 1,
    ApiKey.OffsetCommit: 2,
    ApiKey.OffsetFetch: 1,
    ApiKey.JoinGroup: 2,
    ApiKey.CreateTopics: 2,
    ApiKey.DeleteTopics: 1,
    ApiKey.DescribeConfigs: 1,
    ApiKey.OffsetForLeaderEpoch: 2,
    ApiKey.WriteTxnMarkers: 1,
    ApiKey.DescribeAcls: 1,
    ApiKey.CreateAcls: 1,
    ApiKey.DeleteAcls: 1,
    ApiKey.DescribeLogDirs: 1,
    ApiKey.AlterReplicaLogDirs: 1,
    ApiKey.CreateDelegationToken: 1,
    ApiKey.RenewDelegationToken: 1,
    ApiKey.ExpireDelegationToken: 1,
    ApiKey.DescribeDelegationToken: 1,
}
MAX_CLIENTS = 1000
MAX_TOPICS = 20  # of a client
MAX_TEXT = 200  # characters of what a client tells
_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_FIRST_VERSION_WITH_SOFTWARE = 3  # of ApiVersions (KIP-511)
_SAVING_SECONDS = 1.0


class ClientKey(NamedTuple):
    """What tells a client from others. None: the client does not tell it."""

    client_id: str | None
    address: str
    software_name: str | None
    software_version: str | None


@dataclass
class LegacyClient:
    """What is known of a client. Times are in seconds since 1970.

    lowest_versions: by API name, of the APIs that the client used. topics: at most `MAX_TOPICS`, in order of first use.
    requests: those of dropped versions. Bytes are those of converted partitions, as the client received or sent them.
    """

    client_id: str | None
    address: str
    software_name: str | None
    software_version: str | None
    first_seen: float
    last_seen: float
    lowest_versions: dict[str, int] = field(default_factory=dict)
    topics: list[str] = field(default_factory=list)
    has_more_topics: bool = False
    requests: int = 0
    fetched_bytes_converted: int = 0
    produced_bytes_converted: int = 0

    @property
    def key(self) -> ClientKey:
        return ClientKey(self.client_id, self.address, self.software_name, self.software_version)

    def use(self, versions: Mapping[str, int]) -> None:
        """Take over versions that are lower than those known."""
        for api, version in versions.items():
            self.lowest_versions[api] = min(version, self.lowest_versions.get(api, version))

    def use_topics(self, topics: Iterable[str]) -> None:
        """Take over topics that are new, as far as there is room. Names that no topic can have are left out."""
        for topic in topics:
            if topic in self.topics or not _TOPIC.fullmatch(topic):
                continue
            if len(self.topics) >= MAX_TOPICS:
                self.has_more_topics = True
                return
            self.topics.append(topic)

    def add(self, other: LegacyClient) -> None:
        """Add what another process knows of the same client."""
        self.first_seen = min(self.first_seen, other.first_seen)
        self.last_seen = max(self.last_seen, other.last_seen)
        self.use(other.lowest_versions)
        self.use_topics(other.topics)
        self.has_more_topics = self.has_more_topics or other.has_more_topics
        self.requests += other.requests
        self.fetched_bytes_converted += other.fetched_bytes_converted
        self.produced_bytes_converted += other.produced_bytes_converted


class ClientList(NamedTuple):
    """Clients, and how many were left out. A client that was left out and came back counts in both."""

    clients: list[LegacyClient]
    left_out: int


class LegacyClients:
    """The legacy clients of one process. Other threads may call `known`. clock: returns seconds since 1970."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._found: OrderedDict[ClientKey, LegacyClient] = OrderedDict()
        self._left_out = 0
        self._lock = threading.Lock()

    def known(self) -> ClientList:
        """Return copies of the clients."""
        with self._lock:
            return ClientList([_copy(client) for client in self._found.values()], self._left_out)

    def seen(self, key: ClientKey, versions: Mapping[str, int], topics: Iterable[str]) -> None:
        """Count a request of a dropped version."""
        now = self._clock()
        with self._lock:
            client = self._found.get(key)
            if client is None:
                client = self._found[key] = LegacyClient(*key, first_seen=now, last_seen=now)
                self._trim()
            else:
                self._found.move_to_end(key)
            client.last_seen = now
            client.requests += 1
            client.use(versions)
            client.use_topics(topics)
        self.on_change()

    def converted(self, key: ClientKey, api_key: int, conversions: Conversions) -> None:
        """Count the bytes of conversions for a client, unless it was left out meanwhile."""
        with self._lock:
            client = self._found.get(key)
            if client is None:
                return
            if api_key == ApiKey.Fetch:
                client.fetched_bytes_converted += conversions.size_bytes
            else:
                client.produced_bytes_converted += conversions.size_bytes
            client.use_topics(conversions.records)
        self.on_change()

    def on_change(self) -> None:
        """Called after each change."""

    def take_over(self, known: ClientList) -> None:
        """Add clients that another process has seen."""
        with self._lock:
            for client in sorted(known.clients, key=lambda one: one.last_seen):
                self._found.setdefault(client.key, client)
            self._left_out += known.left_out
            self._trim()

    def _trim(self) -> None:
        while len(self._found) > MAX_CLIENTS:
            self._found.popitem(last=False)
            self._left_out += 1


class SavedClients(LegacyClients):
    """The legacy clients of a worker, which keeps them in a file: at most a second old, and read at the start."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        super().__init__(clock)
        self._path = path
        self._saving = threading.Lock()
        self._is_changed = False
        self.take_over(_read(path))

    def on_change(self) -> None:
        """Save the clients soon."""
        if not self._is_changed:
            self._is_changed = True
            loop = asyncio.get_running_loop()
            loop.call_later(_SAVING_SECONDS, loop.run_in_executor, None, self.save)

    def save(self) -> None:
        """Write the file. Readers see the old one or the new one."""
        with self._saving:
            self._is_changed = False
            known = self.known()
            data = {"clients": [_fields(one) for one in known.clients], "left_out": known.left_out}
            temporary = self._path.with_suffix(".new")
            temporary.write_text(json.dumps(data))
            temporary.replace(self._path)


def clients_file(folder: Path, worker: int) -> Path:
    """Return the file of a worker's clients."""
    return folder / f"clients-{worker}.json"


def workers_clients(folder: Path) -> ClientList:
    """Return the clients of all workers, at most `MAX_CLIENTS`: those that were seen last."""
    found: dict[ClientKey, LegacyClient] = {}
    left_out = 0
    for path in sorted(folder.glob("clients-*.json")):
        of_one = _read(path)
        left_out += of_one.left_out
        for client in of_one.clients:
            known = found.setdefault(client.key, client)
            if known is not client:
                known.add(client)
    clients = sorted(found.values(), key=lambda client: client.last_seen, reverse=True)
    return ClientList(clients[:MAX_CLIENTS], left_out + len(clients[MAX_CLIENTS:]))


def _read(path: Path) -> ClientList:
    try:
        data = json.loads(path.read_bytes())
    except FileNotFoundError:
        return ClientList([], 0)
    return ClientList([LegacyClient(**one) for one in data["clients"]], data["left_out"])


def _fields(client: LegacyClient) -> dict[str, Any]:
    return {name: getattr(client, name) for name in _NAMES}


def _copy(client: LegacyClient) -> LegacyClient:
    copied = LegacyClient(**_fields(client))
    copied.lowest_versions, copied.topics = dict(client.lowest_versions), list(client.topics)
    return copied


_NAMES = tuple(one.name for one in fields(LegacyClient))


class TrackedClient(ClientEvents):
    """The events of one connection. Its client is listed once it has sent a request of a dropped version."""

    def __init__(self, clients: LegacyClients, metrics: Metrics, address: str) -> None:
        self._clients = clients
        self._metrics = metrics
        self._key = ClientKey(None, address, None, None)
        self._lowest: dict[int, int] = {}
        self._versions: dict[str, int] = {}  # the same, by API name

    def request_passed(self, api_key: int, version: int) -> None:
        if version < self._lowest.get(api_key, version + 1):
            self._lowest[api_key] = self._versions[api_name(api_key)] = version

    def request_taken(self, api_key: int, version: int, client_id: str | None, body: Any) -> None:
        self.request_passed(api_key, version)
        if api_key == ApiKey.ApiVersions and version >= _FIRST_VERSION_WITH_SOFTWARE:
            self._software(body)
        if version >= FIRST_VERSIONS.get(api_key, 0):
            return
        self._key = self._key._replace(client_id=_cut(client_id))
        topics = [topic.topic for topic in body.topics] if api_key == ApiKey.Fetch else []
        self._clients.seen(self._key, self._versions, topics)

    def converted(self, api_key: int, conversions: Conversions) -> None:
        self._metrics.messages_converted(api_key, conversions)
        self._clients.converted(self._key, api_key, conversions)

    def _software(self, body: Any) -> None:
        name, version = (getattr(body, f"client_software_{part}", None) for part in ("name", "version"))
        self._key = self._key._replace(software_name=_cut(name), software_version=_cut(version))


def _cut(text: str | None) -> str | None:
    """Return the beginning of what a client tells; None for nothing."""
    return text[:MAX_TEXT] if text else None
