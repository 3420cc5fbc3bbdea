"""A complete generation of a group: what the coordinator has to know of it after a restart.

Kafka keeps the same in `__consumer_offsets`, but without all protocols of each member. With them, a member that joins
again unchanged causes no rebalance.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

LOGGED_CHARS = 200  # of a group id, which clients choose


class GenerationMember(NamedTuple):
    """A member and its assignment. protocols: metadata by name, in order of preference. Times are in seconds."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout: float
    rebalance_timeout: float
    protocols: Mapping[str, bytes]
    assignment: bytes


class Generation(NamedTuple):
    """A generation whose leader has sent the assignments."""

    generation_id: int
    protocol_type: str
    protocol_name: str
    leader_id: str
    members: tuple[GenerationMember, ...]

    def check(self) -> None:
        """Raise ValueError if no group can be in this generation."""
        ids = [member.member_id for member in self.members]
        instance_ids = [member.instance_id for member in self.members if member.instance_id is not None]
        if self.leader_id not in ids:
            raise ValueError("a leader that is not a member")
        if _has_twins(ids) or _has_twins(instance_ids):
            raise ValueError("two members with the same id")
        if not all(self.protocol_name in member.protocols for member in self.members):
            raise ValueError("a member without the protocol of the others")


def _has_twins(ids: Iterable[str]) -> bool:
    listed = list(ids)
    return len(set(listed)) < len(listed)
