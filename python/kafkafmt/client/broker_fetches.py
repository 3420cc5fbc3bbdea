"""The fetches of one broker: its session, the ids of its topics, and the encoding of requests and responses.

The topics of a session are named by their ids or by their names. All of them have an id if the broker and the metadata
know ids. If the caller has pinned the id of a topic, topics without a pinned id have names, and so have all others of
the session: a session cannot mix them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

import kafka.errors as kafka_errors

from _kafkafmt.client import fetch
from _kafkafmt.client.messages import RequestHeader
from kafkafmt.client.fetch_session import FetchSessionState
from kafkafmt.types import TopicPartition

if TYPE_CHECKING:
    from kafka.cluster import ClusterMetadata

_API_KEY = 1
# The first versions of Fetch with isolation levels, and with sessions (KIP-227).
_ISOLATION_VERSION = 4
_SESSION_VERSION = 7
_NO_ID = UUID(int=0)
_TOPIC = itemgetter(0)


class FetchAnswer(NamedTuple):
    """What a response has of one partition: a row of `FETCHED_DTYPE`."""

    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    diverging_end_offset: int
    records_position: int
    records_size: int
    topic: int
    partition: int
    diverging_epoch: int
    leader_id: int
    leader_epoch: int
    preferred_read_replica: int
    first_aborted: int
    aborted: int
    error_code: int
    reserved: int


@dataclass(frozen=True)
class FetchSettings:
    """The options of a consumer that its requests have."""

    max_wait_ms: int
    min_bytes: int
    isolation_level: int
    rack_id: bytes
    client_id: bytes
    uses_sessions: bool

    @classmethod
    def of_config(cls, config: Mapping[str, Any]) -> FetchSettings:
        """Return the settings that the options of a consumer stand for."""
        return cls(
            config["fetch_max_wait_ms"],
            config["fetch_min_bytes"],
            int(config["isolation_level"] == "read_committed"),
            config["client_rack"].encode(),
            str(config["client_id"] or "").encode(),
            config["enable_incremental_fetch_sessions"],
        )


class FetchRequest(NamedTuple):
    """An encoded request, and the version of its response."""

    frame: bytes
    version: int


class BrokerFetches:
    """The fetches of one broker, of which one is in flight at a time. Only callbacks in the I/O thread call it."""

    def __init__(self, settings: FetchSettings) -> None:
        self.session = FetchSessionState()
        self.is_in_flight = False
        self.not_before = 0.0
        self.behind: set[TopicPartition] = set()  # partitions of which the broker has more records
        self._settings = settings
        self._ids: dict[str, UUID] = {}  # of the topics of the session; empty if it uses names
        self._has_stale_ids = True

    def forget_ids(self) -> None:
        """Look up the ids of the topics for the next request, because topics or ids have changed."""
        self._has_stale_ids = True

    def encode(
        self,
        versions: tuple[int, int],
        correlation_id: int,
        max_bytes: int,
        cluster: ClusterMetadata,
        pinned: Mapping[str, UUID],
    ) -> FetchRequest:
        """Encode the next request. It must be sent, or `session.fail` be called.

        versions: the oldest and the newest that the broker knows.

        Raises IncompatibleBrokerVersion if the consumer knows none of them.
        """
        version = self._version(versions, cluster, pinned)
        is_incremental = version >= _SESSION_VERSION and self._settings.uses_sessions
        plan = self.session.next_request(is_incremental=is_incremental)
        numbers: dict[str, int] = {}
        rows = [
            (numbers.setdefault(key.topic, len(numbers)), key.partition, *position[:4])
            for key, position in plan.positions.items()
        ]
        forgotten = [(numbers.setdefault(key.topic, len(numbers)), key.partition) for key in plan.forgotten]
        if len(numbers) > 1:  # rows of a topic are adjacent, and keep their order otherwise
            rows.sort(key=_TOPIC)
            forgotten.sort(key=_TOPIC)
        settings = self._settings
        encoder = fetch.FetchEncoder(
            settings.max_wait_ms, settings.min_bytes, max_bytes, settings.isolation_level, settings.rack_id
        )
        frame = encoder.encode(
            RequestHeader(version, correlation_id, settings.client_id),
            fetch.FetchSession(plan.session_id, plan.epoch),
            [self._ids[topic].bytes if self._ids else topic.encode() for topic in numbers],
            rows,
            forgotten,
        )
        return FetchRequest(frame, version)

    @staticmethod
    def api_versions(known: Mapping[int, tuple[int, int]]) -> tuple[int, int]:
        """Return the oldest and the newest version of Fetch that a broker knows, of the versions of all its APIs."""
        return known[_API_KEY]

    def answers(
        self, response: fetch.FetchResponse, version: int
    ) -> list[tuple[TopicPartition, FetchAnswer]]:
        """Return each partition of a response to the last request, with its answer. Raises UnicodeDecodeError."""
        names: list[str | None]
        if version >= fetch.TOPIC_IDS_VERSION:
            by_id = {topic_id.bytes: topic for topic, topic_id in self._ids.items()}
            names = [by_id.get(topic) for topic in response.topics]
        else:
            names = [topic.decode() for topic in response.topics]
        found = map(FetchAnswer._make, response.partitions.tolist())
        return [
            (TopicPartition(name, answer.partition), answer)
            for answer in found
            if (name := names[answer.topic]) is not None
        ]

    def _version(
        self, versions: tuple[int, int], cluster: ClusterMetadata, pinned: Mapping[str, UUID]
    ) -> int:
        """Choose the version of the next fetch. Begin a new session if a topic of the session has another id."""
        oldest, newest = versions
        version = min(newest, fetch.NEWEST_VERSION)
        ids: dict[str, UUID] = {}
        if version >= fetch.TOPIC_IDS_VERSION:
            ids = self._find_ids(cluster, pinned) if self._has_stale_ids else self._ids
        if bool(ids) != bool(self._ids) or any(
            ids.get(name, known) != known for name, known in self._ids.items()
        ):
            self.session.fail()
        self._ids, self._has_stale_ids = ids, False
        if not ids:
            version = min(version, fetch.TOPIC_IDS_VERSION - 1)
        least = _ISOLATION_VERSION if self._settings.isolation_level else fetch.OLDEST_VERSION
        if version < max(oldest, least):
            raise kafka_errors.IncompatibleBrokerVersion(
                f"Fetch: expected a version from {max(oldest, least)} to {newest}, which the broker knows, "
                f"found at most {version}"
            )
        return version

    def _find_ids(self, cluster: ClusterMetadata, pinned: Mapping[str, UUID]) -> dict[str, UUID]:
        """Return the ids of all topics of the session; empty if it has to use names."""
        ids = {}
        topics = self.session.topics()
        is_pinned = not pinned.keys().isdisjoint(topics)
        for topic in topics:
            topic_id = pinned.get(topic) if is_pinned else cluster.topic_id(topic)
            if not topic_id or topic_id == _NO_ID:
                return {}
            ids[topic] = topic_id
        return ids
