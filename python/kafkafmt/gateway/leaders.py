"""The brokers that lead the partitions of a request, and those that have the sessions of a client's requests.

A session of Fetch (KIP-227) or of a share group (KIP-932) is at one broker. A request in a session names only what has
changed. So the gateway passes it to that broker unchanged, even if other brokers lead the partitions now. The broker
answers as it would answer the client itself. A request that opens a session and is split gets none.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Generic, TypeVar
from uuid import UUID

from kafka import errors

from kafkafmt.gateway.cluster import STALE_LEADER_CODES, ClusterView
from kafkafmt.server.errors import MalformedRequestError

if TYPE_CHECKING:
    from kafkafmt.gateway.upstreams import Upstreams

_Part = TypeVar("_Part")
_Key = TypeVar("_Key")

# So many sessions of a client are remembered. Kafka's clients have one for each broker.
_MAX_SESSIONS = 1000
_MOVED = int(errors.NotLeaderForPartitionError.errno)


class Sessions(Generic[_Key]):
    """The nodes that have the sessions of one client, by session."""

    def __init__(self) -> None:
        self._nodes: dict[_Key, int] = {}

    def node(self, session: _Key) -> int | None:
        """Return the node that has a session; None if it is not known."""
        return self._nodes.get(session)

    def open(self, session: _Key, node: int) -> None:
        """Remember where a session is."""
        self._nodes[session] = node
        if len(self._nodes) > _MAX_SESSIONS:
            del self._nodes[next(iter(self._nodes))]

    def forget(self, node: int) -> None:
        """Forget the sessions at a node: it does not lead what the client asks it for."""
        self._nodes = {session: one for session, one in self._nodes.items() if one != node}


def topic_name(topic: bytes) -> str:
    """Return the name of a topic in a request. Raises MalformedRequestError."""
    try:
        return topic.decode()
    except UnicodeDecodeError:
        raise MalformedRequestError(f"expected a topic in UTF-8, found {topic!r}") from None


def forget_leaders(view: ClusterView, found: Iterable[tuple[bytes, int, int]], *, are_ids: bool) -> bool:
    """Forget the leaders of partitions that have others. Returns whether any has moved.

    found: tuples of topic, partition and error code. A topic is its name in UTF-8 or, with `are_ids`, its id.
    """
    has_moved = False
    for topic, _, error_code in found:
        has_moved = has_moved or error_code == _MOVED
        if error_code in STALE_LEADER_CODES:
            view.forget_leaders(UUID(bytes=topic) if are_ids else topic.decode(errors="replace"))
    return has_moved


async def by_leader(
    upstreams: Upstreams, parts: Iterable[tuple[str | UUID | None, int, _Part]]
) -> dict[int | None, list[_Part]]:
    """Return parts of a request by the node that leads their partitions; None: by any node.

    parts: each with its topic and partition. Any broker answers for parts without a leader. So they are with the parts
    of another broker, or with None if no part has a leader.
    """
    found = list(parts)
    by_node = _grouped(upstreams.view, found)
    unknown = {topic for topic, _, _ in found if topic is not None} if None in by_node else set()
    if unknown:
        await upstreams.refresh(sorted(unknown, key=str))
        by_node = _grouped(upstreams.view, found)
    if None in by_node and len(by_node) > 1:
        without = by_node.pop(None)
        by_node[next(iter(by_node))] += without
    return by_node


def _grouped(
    view: ClusterView, parts: Iterable[tuple[str | UUID | None, int, _Part]]
) -> dict[int | None, list[_Part]]:
    by_node: dict[int | None, list[_Part]] = {}
    for topic, partition, part in parts:
        node = None if topic is None else view.leader(topic, partition)
        by_node.setdefault(node, []).append(part)
    return by_node
