"""What a broker remembers of a consumer's fetches between its requests (KIP-227), without sockets.

A request names only the partitions that have changed. A response has only those with news. So partitions without news
cost nothing on either side.
"""

from __future__ import annotations

from typing import NamedTuple

import kafka.errors as kafka_errors

from kafkafmt.types import TopicPartition

_NO_SESSION = 0
_THROTTLED_SESSION = -1
_FIRST_EPOCH = 0
_NO_SESSION_EPOCH = -1
_MAX_EPOCH = 2**31 - 1


class FetchPosition(NamedTuple):
    """Where a fetch of one partition begins. All fields but `generation` are those of a request.

    last_fetched_epoch: the leader epoch of the record before `offset` (KIP-320); -1 if it is not known.
    generation: of the caller's position. A new one is sent again, although nothing else has changed.
    """

    offset: int
    current_leader_epoch: int
    last_fetched_epoch: int
    max_bytes: int
    generation: int = 0


class FetchPlan(NamedTuple):
    """The session fields and the partitions of the next request."""

    session_id: int
    epoch: int
    positions: dict[TopicPartition, FetchPosition]
    forgotten: list[TopicPartition]


class FetchSessionState:
    """The partitions that are fetched from one broker. One request is in flight at a time."""

    def __init__(self) -> None:
        self._session_id = _NO_SESSION
        self._epoch = _FIRST_EPOCH
        self._wanted: dict[TopicPartition, FetchPosition] = {}
        self._known: dict[
            TopicPartition, FetchPosition
        ] = {}  # by the broker, once it has the request in flight
        self._changed: set[TopicPartition] = set()

    def __len__(self) -> int:
        """Return the number of partitions that the next request fetches."""
        return len(self._wanted)

    def put(self, topic_partition: TopicPartition, position: FetchPosition) -> None:
        """Fetch a partition from this position from the next request on.

        A new position comes after all others: a broker fills a response in the order of the request until it is full.
        """
        if self._wanted.get(topic_partition) == position:
            return
        self._wanted.pop(topic_partition, None)
        self._wanted[topic_partition] = position
        self._changed.add(topic_partition)

    def discard(self, topic_partition: TopicPartition) -> None:
        """Fetch a partition no more from the next request on."""
        if self._wanted.pop(topic_partition, None) is not None:
            self._changed.add(topic_partition)

    def topics(self) -> set[str]:
        """Return the topics of the next request, those that it only forgets included."""
        return {key.topic for partitions in (self._wanted, self._known) for key in partitions}

    def fetched_position(self, topic_partition: TopicPartition) -> FetchPosition | None:
        """Return the position from which the request in flight fetches a partition; None if it does not."""
        return self._known.get(topic_partition)

    def next_request(self, *, is_incremental: bool) -> FetchPlan:
        """Return what the next request says. The request must then be sent, or `fail` be called.

        is_incremental: whether the broker keeps sessions; else each request names all partitions.
        """
        if not is_incremental:
            self._session_id, self._epoch = _NO_SESSION, _NO_SESSION_EPOCH
        elif self._epoch == _NO_SESSION_EPOCH:
            self._epoch = _FIRST_EPOCH
        changed, self._changed = self._changed, set()
        if self._epoch <= _FIRST_EPOCH:
            self._known = dict(self._wanted)
            return FetchPlan(self._session_id, self._epoch, dict(self._known), [])
        positions, forgotten = {}, []
        for topic_partition in changed:
            position = self._wanted.get(topic_partition)
            if position == self._known.get(topic_partition):
                continue
            if position is None:
                del self._known[topic_partition]
                forgotten.append(topic_partition)
            else:
                self._known[topic_partition] = positions[topic_partition] = position
        return FetchPlan(self._session_id, self._epoch, positions, forgotten)

    def accept(self, session_id: int, error_code: int) -> Exception | None:
        """Take the session fields of a response. Return the error of the whole request; None if it has partitions.

        After an error the next request names all partitions.
        """
        if error_code:
            if error_code == kafka_errors.FetchSessionIdNotFoundError.errno:
                self._session_id = _NO_SESSION
            self.fail()
            error: Exception = kafka_errors.for_code(error_code)()
            return error
        if self._epoch == _NO_SESSION_EPOCH or session_id == _THROTTLED_SESSION:
            return None
        if session_id == _NO_SESSION:
            self._session_id, self._epoch = _NO_SESSION, _FIRST_EPOCH
        else:
            self._session_id = session_id
            self._epoch = self._epoch + 1 if self._epoch < _MAX_EPOCH else 1
        return None

    def fail(self) -> None:
        """Begin a new session with the next request: whether the broker has handled the last one is not known."""
        self._epoch = _FIRST_EPOCH
