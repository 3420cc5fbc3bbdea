"""A group and its clock for tests: events go in at times that the test sets, answers are looked up by request."""

from __future__ import annotations

from typing import Any

from kafka import errors

from kafkafmt.serve.groups.generation import Generation
from kafkafmt.serve.groups.group import Group
from kafkafmt.serve.groups.member import Error, Join, JoinResult, MemberIdentity, Sync, SyncResult

SESSION, REBALANCE = 10.0, 60.0


class Scene:
    """`at` is the time. A deadline that passes is acted on, as the owner of a group does.

    keeps: generations are kept as soon as they are to be; else by `keep` and `fail_to_keep`.
    """

    def __init__(self, *, initial_rebalance_delay: float = 0.0, max_size: int = 1000) -> None:
        self._limits: dict[str, Any] = {
            "initial_rebalance_delay": initial_rebalance_delay,
            "max_size": max_size,
        }
        self.group = Group(**self._limits)
        self.at = 0.0
        self.keeps = True
        self._kept: Generation | None = None
        self._answers: dict[Join | Sync, JoinResult | SyncResult] = {}
        self._ids = 0

    def keep(self) -> None:
        """The generation that is to be kept is."""
        self._kept = self.group.unsaved
        assert self._kept is not None
        self.group.saved(self._kept, self.at)

    def fail_to_keep(self) -> None:
        assert self.group.unsaved is not None
        self.group.save_failed(self.group.unsaved, self.at)

    @property
    def has_kept(self) -> bool:
        return self._kept is not None

    def restart(self) -> None:
        """The group is lost, but for the last generation that was kept; nobody is answered."""
        assert self._kept is not None
        self.group = Group.restored(self._kept, **self._limits)
        self.group.begin_sessions(self.at)

    def _keep_if_to(self) -> None:
        if self.keeps and self.group.unsaved is not None:
            self.keep()

    def wait(self, seconds: float) -> None:
        """Let time pass, deadline by deadline."""
        until = self.at + seconds
        while self.group.deadline <= until:
            self.at = self.group.deadline
            self.group.expire(self.at)
            assert self.group.deadline > self.at, "a deadline that is over has been dealt with"
        self.at = until

    def join(
        self,
        member_id: str = "",
        *,
        protocols: dict[str, bytes] | None = None,
        protocol_type: str = "consumer",
        instance_id: str | None = None,
        needs_member_id: bool = False,
        can_skip_assignment: bool = False,
        session: float = SESSION,
        rebalance: float = REBALANCE,
    ) -> Join:
        """A request to join; one without an id will get m1, m2, ..."""
        self._ids += 1
        join = Join(
            member_id=member_id,
            new_member_id=f"m{self._ids}",
            protocol_type=protocol_type,
            protocols={"range": b"range"} if protocols is None else protocols,
            session_timeout=session,
            rebalance_timeout=rebalance,
            instance_id=instance_id,
            needs_member_id=needs_member_id,
            can_skip_assignment=can_skip_assignment,
        )
        self.group.join(join, self.at)
        self._keep_if_to()
        return join

    def sync(
        self,
        member_id: str,
        assignments: dict[str, bytes] | None = None,
        *,
        generation_id: int | None = None,
        instance_id: str | None = None,
        protocol_type: str | None = None,
        protocol_name: str | None = None,
    ) -> Sync:
        identity = self.identity(member_id, generation_id, instance_id)
        sync = Sync(identity, assignments or {}, protocol_type, protocol_name)
        self.group.sync(sync, self.at)
        self._keep_if_to()
        return sync

    def identity(
        self, member_id: str, generation_id: int | None = None, instance_id: str | None = None
    ) -> MemberIdentity:
        generation = self.group.generation_id if generation_id is None else generation_id
        return MemberIdentity(member_id, generation, instance_id)

    def heartbeat(
        self, member_id: str, generation_id: int | None = None, instance_id: str | None = None
    ) -> Error:
        return self.group.heartbeat(self.identity(member_id, generation_id, instance_id), self.at)

    def commit(
        self, member_id: str, generation_id: int | None = None, instance_id: str | None = None
    ) -> Error:
        return self.group.commit(self.identity(member_id, generation_id, instance_id), self.at)

    def leave(self, member_id: str, instance_id: str | None = None) -> Error:
        return self.group.leave(member_id, instance_id, self.at)

    def waits(self, request: Join | Sync) -> bool:
        self._take()
        return request not in self._answers

    def joined(self, join: Join) -> JoinResult:
        self._take()
        result = self._answers[join]
        assert isinstance(result, JoinResult)
        return result

    def synced(self, sync: Sync) -> SyncResult:
        self._take()
        result = self._answers[sync]
        assert isinstance(result, SyncResult)
        return result

    def _take(self) -> None:
        for request, result in self.group.take_answers():
            assert request not in self._answers, "a request is answered once"
            self._answers[request] = result

    def stable(self, count: int, **options: object) -> list[str]:
        """Member ids of a new group of that size, each of which has its id for its assignment; the first leads."""
        first = self.join(**options)  # type: ignore[arg-type]
        others = [self.join(**options) for _ in range(count - 1)]  # type: ignore[arg-type]
        if others:
            again = self.join(self.joined(first).member_id, **options)  # type: ignore[arg-type]
            first = again
        ids = [self.joined(join).member_id for join in (first, *others)]
        syncs = [self.sync(member_id, {each: each.encode() for each in ids}) for member_id in reversed(ids)]
        assert [self.synced(sync).error for sync in syncs] == [errors.NoError] * count
        return ids
