"""The members of a group by id, its static members by instance id, clients told to join again, and the leader."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from math import inf

from kafka import errors

from kafkafmt.serve.groups.generation import Generation
from kafkafmt.serve.groups.member import MEMBER_OVERHEAD_BYTES, Error, Join, Member


class Roster:
    """The members of a group and what follows from them, whatever state the group is in.

    pending_deadlines: by member id, when a client expires that was given the id to join again with it (KIP-394).
    """

    def __init__(self) -> None:
        self.members: dict[str, Member] = {}
        self.pending_deadlines: dict[str, float] = {}
        self.leader_id: str | None = None
        self.protocol_type: str | None = None
        self._static_member_ids: dict[str, str] = {}
        # The number of members with each protocol, so that a join takes time only for its own protocols.
        self._protocol_counts: Counter[str] = Counter()

    @classmethod
    def restored(cls, generation: Generation) -> Roster:
        """Return the members of a saved generation."""
        roster = cls()
        roster.protocol_type, roster.leader_id = generation.protocol_type, generation.leader_id
        for kept in generation.members:
            roster._put(Member.restored(kept, generation.protocol_type))
        return roster

    def __len__(self) -> int:
        """Return the number of members, and of clients that were told to join again."""
        return len(self.members) + len(self.pending_deadlines)

    @property
    def size_bytes(self) -> int:
        """Return about how many bytes it takes in memory."""
        members = sum(member.size_bytes for member in self.members.values())
        return members + sum(MEMBER_OVERHEAD_BYTES + len(member_id) for member_id in self.pending_deadlines)

    @property
    def deadline(self) -> float:
        """Return when the first member or client expires."""
        return min(
            min(self.pending_deadlines.values(), default=inf),
            min((member.deadline for member in self.members.values()), default=inf),
        )

    @property
    def rebalance_timeout(self) -> float:
        """The longest rebalance timeout of the members, in seconds; 0 without members."""
        return max((member.rebalance_timeout for member in self.members.values()), default=0.0)

    def static_member(self, instance_id: str | None) -> Member | None:
        """Return the member with that `group.instance.id`; None if there is none."""
        return None if instance_id is None else self.members.get(self._static_member_ids.get(instance_id, ""))

    def identity_error(self, member_id: str, instance_id: str | None) -> Error | None:
        """Return the error if those ids are not a member's; else None."""
        if instance_id is not None:
            static = self.static_member(instance_id)
            if static is not None and static.member_id != member_id:
                return errors.FencedInstanceIdError
            if static is None:
                return errors.UnknownMemberIdError
        return None if member_id in self.members else errors.UnknownMemberIdError

    def supports(self, join: Join) -> bool:
        """Return whether the join offers a protocol that all members have."""
        if not self.members:
            return bool(join.protocol_type and join.protocols)
        return join.protocol_type == self.protocol_type and any(map(self._is_common, join.protocols))

    def selected_protocol(self) -> str:
        """Return the protocol with the most votes, of those that all members have."""
        any_member = next(iter(self.members.values()))
        candidates = set(filter(self._is_common, any_member.protocols))
        votes = Counter(member.vote(candidates) for member in self.members.values())
        return votes.most_common(1)[0][0]

    def _is_common(self, protocol: str) -> bool:
        """Return whether all members have that protocol."""
        return self._protocol_counts[protocol] == len(self.members)

    def add(self, join: Join) -> Member:
        """Add the member of a first JoinGroup request. The first member becomes the leader."""
        member = Member.joining(join)
        if not self.members:
            self.protocol_type = join.protocol_type
            self.leader_id = member.member_id
        self._put(member)
        return member

    def join_again(self, member: Member, join: Join) -> None:
        """Update a member to what its new join asks for."""
        self._discount(member)
        member.join_again(join)
        self._protocol_counts.update(member.protocols.keys())

    def _put(self, member: Member) -> None:
        self.members[member.member_id] = member
        self._protocol_counts.update(member.protocols.keys())
        if member.instance_id is not None:
            self._static_member_ids[member.instance_id] = member.member_id

    def rename(self, member: Member, member_id: str) -> None:
        """Give a static member another id. Its former id is fenced from now on."""
        del self.members[member.member_id]
        self._discount(member)
        if self.leader_id == member.member_id:
            self.leader_id = member_id
        member.member_id = member_id
        self._put(member)

    def forget(self, members: Iterable[Member]) -> None:
        """Remove members. If the leader is among them, another member becomes the leader."""
        for member in members:
            del self.members[member.member_id]
            self._discount(member)
            if member.instance_id is not None:
                del self._static_member_ids[member.instance_id]
        if self.leader_id not in self.members:
            self.leader_id = next(iter(self.members), None)

    def _discount(self, member: Member) -> None:
        """Remove the protocols of a member from the counts."""
        self._protocol_counts.subtract(member.protocols.keys())
        for protocol in member.protocols:
            if not self._protocol_counts[protocol]:
                del self._protocol_counts[protocol]
