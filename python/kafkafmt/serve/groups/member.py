"""The requests and answers of group members, in the terms of Kafka's JoinGroup and SyncGroup.

Nothing here depends on the wire format or on a clock.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any, NamedTuple, TypeAlias

from kafkafmt.serve.groups.generation import GenerationMember

# A class of `kafka.errors`, `NoError` among them.
Error: TypeAlias = Any

UNKNOWN_MEMBER_ID = ""  # of a client that has no member id yet
NO_GENERATION = -1  # of a consumer that assigns its partitions itself

# Bytes charged for a member that is alone in its group, and for each protocol, beside the bytes that the client sent:
# about the size of the objects.
MEMBER_OVERHEAD_BYTES = 4096
_PROTOCOL_OVERHEAD_BYTES = 256


class MemberIdentity(NamedTuple):
    """The member that a request names as its sender. instance_id: a static member's `group.instance.id` (KIP-345)."""

    member_id: str
    generation_id: int
    instance_id: str | None = None


class MemberMetadata(NamedTuple):
    """What the leader of a group gets about a member."""

    member_id: str
    instance_id: str | None
    metadata: bytes


@dataclass(frozen=True)
class JoinResult:
    """The answer to a `Join`. Only the leader gets `members`."""

    error: Error
    member_id: str
    generation_id: int = NO_GENERATION
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader_id: str = UNKNOWN_MEMBER_ID
    members: Collection[MemberMetadata] = ()
    skip_assignment: bool = False


@dataclass(frozen=True, eq=False)
class Join:
    """A request to join a group; times are in seconds.

    new_member_id: the id for a client that has none yet.
    needs_member_id: a client without an id must join again with the one that it gets (KIP-394).
    can_skip_assignment: the client understands that a leader has nothing to assign (KIP-814).
    """

    member_id: str
    new_member_id: str
    protocol_type: str
    protocols: Mapping[str, bytes]
    session_timeout: float
    rebalance_timeout: float
    instance_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    needs_member_id: bool = False
    can_skip_assignment: bool = False

    @property
    def size_bytes(self) -> int:
        """Return the bytes that are charged for the member that joins."""
        names = (self.new_member_id, self.protocol_type, self.instance_id, self.client_id, self.client_host)
        return _charge(names, self.protocols)

    def refused(self, error: Error) -> JoinResult:
        """Return the answer that refuses this request."""
        return JoinResult(error, self.member_id)


def _charge(names: Iterable[str | None], protocols: Mapping[str, bytes]) -> int:
    """Return the bytes that are charged for a member."""
    listed = sum(_PROTOCOL_OVERHEAD_BYTES + len(name) + len(metadata) for name, metadata in protocols.items())
    return MEMBER_OVERHEAD_BYTES + sum(len(name) for name in names if name) + listed


@dataclass(frozen=True)
class SyncResult:
    """The answer to a `Sync`."""

    error: Error
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""


@dataclass(frozen=True, eq=False)
class Sync:
    """A request for an assignment; the leader's has those of all members. A protocol that is None is not compared."""

    identity: MemberIdentity
    assignments: dict[str, bytes] = field(default_factory=dict)
    protocol_type: str | None = None
    protocol_name: str | None = None

    @property
    def size_bytes(self) -> int:
        """The size of all assignments in bytes."""
        return sum(map(len, self.assignments.values()))

    def refused(self, error: Error) -> SyncResult:
        """Return the answer that refuses this request."""
        return SyncResult(error)


@dataclass(eq=False)
class Member:
    """A member of a group, and its requests that wait for other members.

    joined_bytes: the bytes charged for its last join.
    is_new: it was not part of a generation yet.
    needs_sync: it has not asked for its assignment in this generation.
    deadline: when its session expires unless it sends a request.
    """

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    protocols: Mapping[str, bytes]
    session_timeout: float
    rebalance_timeout: float
    joined_bytes: int
    assignment: bytes = b""
    awaiting_join: Join | None = None
    awaiting_sync: Sync | None = None
    is_new: bool = True
    needs_sync: bool = False
    deadline: float = inf

    @classmethod
    def joining(cls, join: Join) -> Member:
        """Create the member of a first JoinGroup request."""
        return cls(
            member_id=join.member_id or join.new_member_id,
            instance_id=join.instance_id,
            client_id=join.client_id,
            client_host=join.client_host,
            protocols=join.protocols,
            session_timeout=join.session_timeout,
            rebalance_timeout=join.rebalance_timeout,
            joined_bytes=join.size_bytes,
            awaiting_join=join,
        )

    @classmethod
    def restored(cls, kept: GenerationMember, protocol_type: str) -> Member:
        """Return a member of a saved generation. It has no deadline until its session begins."""
        names = (kept.member_id, protocol_type, kept.instance_id, kept.client_id, kept.client_host)
        return cls(**kept._asdict(), joined_bytes=_charge(names, kept.protocols), is_new=False)

    def snapshot(self) -> GenerationMember:
        """Return the member as it is stored with a generation."""
        return GenerationMember._make(getattr(self, name) for name in GenerationMember._fields)

    @property
    def size_bytes(self) -> int:
        """The bytes that the member holds: of its JoinGroup request, and its assignment."""
        return self.joined_bytes + len(self.assignment)

    @property
    def is_waiting(self) -> bool:
        """Whether a request of the member waits for its answer."""
        return self.awaiting_join is not None or self.awaiting_sync is not None

    def join_again(self, join: Join) -> None:
        """Apply another JoinGroup request of the member, which now waits for its answer."""
        self.protocols = join.protocols
        self.session_timeout = join.session_timeout
        self.rebalance_timeout = join.rebalance_timeout
        self.joined_bytes = join.size_bytes
        self.awaiting_join = join

    def offers(self, protocols: Mapping[str, bytes]) -> bool:
        """Return whether those are its protocols, in the same order of preference."""
        return list(self.protocols.items()) == list(protocols.items())

    def vote(self, candidates: Collection[str]) -> str:
        """Return the protocol that it prefers among the candidates."""
        return next(name for name in self.protocols if name in candidates)
