"""Who is in a group: members by id, static members by instance id, those that were told to come back, the leader."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from math import inf

from kafka import errors

from kafkafmt.serve.groups.generation import Generation
from kafkafmt.serve.groups.member import MEMBER_OVERHEAD_BYTES, Error, Join, Member


class Roster:
    """The members of a group and what follows from them, whatever the group is about to do.

    pending_deadlines: until when those who were given an id are waited for (KIP-394).
    """

    def __init__(self) -> None:
        self.members: dict[str, Member] = {}
        self.pending_deadlines: dict[str, float] = {}
        self.leader_id: str | None = None
        self.protocol_type: str | None = None
        self._static_member_ids: dict[str, str] = {}

    @classmethod
    def restored(cls, generation: Generation) -> Roster:
        """The members of a generation that was kept."""
        roster = cls()
        roster.protocol_type, roster.leader_id = generation.protocol_type, generation.leader_id
        for kept in generation.members:
            roster._put(Member.restored(kept, generation.protocol_type))
        return roster

    def __len__(self) -> int:
        """Members, and those that may become one."""
        return len(self.members) + len(self.pending_deadlines)

    @property
    def size_bytes(self) -> int:
        """About what it takes in memory."""
        members = sum(member.size_bytes for member in self.members.values())
        return members + sum(MEMBER_OVERHEAD_BYTES + len(member_id) for member_id in self.pending_deadlines)

    @property
    def deadline(self) -> float:
        """When the first of them is taken for dead."""
        return min(
            min(self.pending_deadlines.values(), default=inf),
            min((member.deadline for member in self.members.values()), default=inf),
        )

    @property
    def rebalance_timeout(self) -> float:
        return max((member.rebalance_timeout for member in self.members.values()), default=0.0)

    def static_member(self, instance_id: str | None) -> Member | None:
        """The member of that `group.instance.id`."""
        return None if instance_id is None else self.members.get(self._static_member_ids.get(instance_id, ""))

    def identity_error(self, member_id: str, instance_id: str | None) -> Error | None:
        """Why that is no member, or None."""
        if instance_id is not None:
            static = self.static_member(instance_id)
            if static is not None and static.member_id != member_id:
                return errors.FencedInstanceIdError
            if static is None:
                return errors.UnknownMemberIdError
        return None if member_id in self.members else errors.UnknownMemberIdError

    def supports(self, join: Join) -> bool:
        """Whether one who offers those protocols finds one that all others have."""
        if not self.members:
            return bool(join.protocol_type and join.protocols)
        return join.protocol_type == self.protocol_type and not self._candidates().isdisjoint(join.protocols)

    def selected_protocol(self) -> str:
        """The protocol with most votes, of those that all members have."""
        candidates = self._candidates()
        votes = Counter(member.vote(candidates) for member in self.members.values())
        return votes.most_common(1)[0][0]

    def _candidates(self) -> set[str]:
        return set.intersection(*(set(member.protocols) for member in self.members.values()))

    def add(self, join: Join) -> Member:
        member = Member.joining(join)
        if not self.members:
            self.protocol_type = join.protocol_type
            self.leader_id = member.member_id
        self._put(member)
        return member

    def _put(self, member: Member) -> None:
        self.members[member.member_id] = member
        if member.instance_id is not None:
            self._static_member_ids[member.instance_id] = member.member_id

    def rename(self, member: Member, member_id: str) -> None:
        """Give a static member another id; the former one is fenced from now on."""
        del self.members[member.member_id]
        if self.leader_id == member.member_id:
            self.leader_id = member_id
        member.member_id = member_id
        self._put(member)

    def forget(self, members: Iterable[Member]) -> None:
        for member in members:
            del self.members[member.member_id]
            if member.instance_id is not None:
                del self._static_member_ids[member.instance_id]
        if self.leader_id not in self.members:
            self.leader_id = next(iter(self.members), None)
