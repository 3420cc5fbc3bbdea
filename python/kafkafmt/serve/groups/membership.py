"""All groups that have members, on an event loop: waiting requests are futures, deadlines are the loop's timers."""

from __future__ import annotations

import asyncio
import sqlite3
from dataclasses import dataclass
from typing import Any

import structlog
from kafka import errors

from kafkafmt.serve.groups.generation import LOGGED_CHARS, Generation
from kafkafmt.serve.groups.group import Group
from kafkafmt.serve.groups.member import (
    UNKNOWN_MEMBER_ID,
    Error,
    Join,
    JoinResult,
    MemberIdentity,
    Sync,
    SyncResult,
)
from kafkafmt.serve.groups.store import OffsetStore, not_available
from kafkafmt.serve.options import GroupOptions

log = structlog.get_logger()


@dataclass
class _Tracked:
    """A group, the bytes charged for it, its timer, and the last generation that was logged.

    is_saved: the store has a generation of it, or will have one. saving: the task that writes one.
    """

    group: Group
    size_bytes: int = 0
    timer: asyncio.TimerHandle | None = None
    logged_generation_id: int = 0
    is_saved: bool = False
    saving: asyncio.Task[None] | None = None


class Membership:
    """The members of all groups. A group exists while it has members, or clients that were told to join again.

    Must be used on one event loop. The memory for members is limited over all groups. Members get the answers of a
    generation once the store has it.
    """

    def __init__(self, store: OffsetStore, options: GroupOptions) -> None:
        self._store = store
        self._options = options
        self._tracked: dict[str, _Tracked] = {}
        self._size_bytes = 0
        self._waiting: dict[Join | Sync, asyncio.Future[Any]] = {}
        self._forgetting: set[asyncio.Task[None]] = set()
        self._is_closed = False

    def restore(self) -> None:
        """Load the groups of the store. Their sessions begin with `begin_sessions`."""
        options = self._options
        for group_id, generation in self._store.generations():
            group = Group.restored(
                generation, initial_rebalance_delay=options.initial_rebalance_delay, max_size=options.max_size
            )
            tracked = _Tracked(group, logged_generation_id=generation.generation_id, is_saved=True)
            if self._has_room(_size_bytes(group_id, group)):
                self._tracked[group_id] = tracked
                self._charge(group_id, tracked)
            else:
                log.warning("no memory for the members of a group", group=group_id[:LOGGED_CHARS])
        if self._tracked:
            log.info("groups restored", groups=len(self._tracked))

    def begin_sessions(self) -> None:
        """Start the session timeouts of all members now."""
        for group_id, tracked in self._tracked.items():
            tracked.group.begin_sessions(self._now())
            self._watch(group_id, tracked)

    def groups(self) -> dict[str, Group]:
        """Return all groups by id."""
        return {group_id: tracked.group for group_id, tracked in self._tracked.items()}

    def group(self, group_id: str) -> Group | None:
        """Return a group by its id; None if no member has joined it."""
        tracked = self._tracked.get(group_id)
        return None if tracked is None else tracked.group

    async def join(self, group_id: str, join: Join) -> JoinResult:
        """Join a group, which the first member creates. Waits for the other members."""
        group = self.group(group_id)
        error = self._join_error(group, join)
        if error is not None:
            return join.refused(error)
        if group is None:
            group = Group(
                initial_rebalance_delay=self._options.initial_rebalance_delay, max_size=self._options.max_size
            )
            self._tracked[group_id] = _Tracked(group)
        group.join(join, self._now())
        result: JoinResult = await self._answer(group_id, group, join)
        return result

    async def sync(self, group_id: str, sync: Sync) -> SyncResult:
        """Return the assignment of a member. Waits until the leader has sent it and it is saved."""
        group = self.group(group_id)
        if group is None:
            return sync.refused(self._absence_error())
        if not self._has_room(sync.size_bytes):
            return sync.refused(errors.CoordinatorNotAvailableError)
        group.sync(sync, self._now())
        sync.assignments.clear()  # members have theirs now; those in other members' requests are ignored
        result: SyncResult = await self._answer(group_id, group, sync)
        return result

    def heartbeat(self, group_id: str, identity: MemberIdentity) -> Error:
        """Extend the session of a member. Returns the error for the response; NoError if the member is current."""
        tracked = self._tracked.get(group_id)
        if tracked is None:
            return self._absence_error()
        error = tracked.group.heartbeat(identity, self._now())
        self._watch(group_id, tracked)
        return error

    def leave(self, group_id: str, member_id: str, instance_id: str | None) -> Error:
        """Remove a member. Without a member id, remove the static member of that instance id."""
        group = self.group(group_id)
        if group is None:
            return self._absence_error()
        error = group.leave(member_id, instance_id, self._now())
        self._follow_up(group_id)
        return error

    def commit(self, group_id: str, identity: MemberIdentity) -> Error:
        """Return NoError if that member may commit now; without members, a client without a generation may."""
        tracked = self._tracked.get(group_id)
        if tracked is None:
            return errors.NoError if identity.generation_id < 0 else self._absence_error()
        error = tracked.group.commit(identity, self._now())
        self._watch(group_id, tracked)
        return error

    def drop(self, group_id: str) -> None:
        """Forget a group, and the clients that were told to join it again."""
        tracked = self._tracked.pop(group_id, None)
        if tracked is not None:
            self._size_bytes -= tracked.size_bytes
            if tracked.timer is not None:
                tracked.timer.cancel()

    def close(self) -> None:
        """Answer all waiting requests with COORDINATOR_NOT_AVAILABLE, and accept no more members."""
        self._is_closed = True
        for request, future in self._waiting.items():
            if not future.done():
                future.set_result(request.refused(errors.CoordinatorNotAvailableError))
        for group_id in list(self._tracked):
            self.drop(group_id)

    def _join_error(self, group: Group | None, join: Join) -> Error | None:
        options = self._options
        if not options.min_session_timeout <= join.session_timeout <= options.max_session_timeout:
            return errors.InvalidSessionTimeoutError
        if group is None and (self._is_closed or join.member_id != UNKNOWN_MEMBER_ID):
            return self._absence_error()
        known = None if group is None else group.roster.members.get(join.member_id)
        if not self._has_room(join.size_bytes - (known.joined_bytes if known else 0)):
            return errors.GroupMaxSizeReachedError
        return None

    def _absence_error(self) -> Error:
        """Return the error for a member of a group that does not exist."""
        return errors.CoordinatorNotAvailableError if self._is_closed else errors.UnknownMemberIdError

    def _has_room(self, size_bytes: int) -> bool:
        return self._size_bytes + size_bytes <= self._options.max_membership_bytes

    async def _answer(self, group_id: str, group: Group, request: Join | Sync) -> Any:
        """Wait for the answer to a request that the group has received."""
        future = self._waiting[request] = asyncio.get_running_loop().create_future()
        self._follow_up(group_id)
        try:
            return await future
        except asyncio.CancelledError:
            group.abandon(request, self._now())
            self._follow_up(group_id)
            raise
        finally:
            del self._waiting[request]

    def _follow_up(self, group_id: str) -> None:
        """Follow up an event of a group: send its answers, save it, set its timer, and drop it if it is empty."""
        tracked = self._tracked.get(group_id)
        if tracked is None:
            return
        group = tracked.group
        for request, result in group.take_answers():
            future = self._waiting.get(request)
            if future is not None and not future.done():
                future.set_result(result)
        if group.generation_id != tracked.logged_generation_id:
            tracked.logged_generation_id = group.generation_id
            members, generation = len(group.roster.members), group.generation_id
            log.info(
                "group rebalanced", group=group_id[:LOGGED_CHARS], generation=generation, members=members
            )
        if tracked.saving is None and group.unsaved is not None:
            tracked.is_saved = True
            tracked.saving = asyncio.create_task(self._save(group_id, tracked, group.unsaved))
        if tracked.is_saved and not group.roster.members:
            tracked.is_saved = False
            self._forget(group_id)
        if len(group.roster) == 0:
            self.drop(group_id)
            return
        self._charge(group_id, tracked)
        self._watch(group_id, tracked)

    def _charge(self, group_id: str, tracked: _Tracked) -> None:
        size_bytes = _size_bytes(group_id, tracked.group)
        self._size_bytes += size_bytes - tracked.size_bytes
        tracked.size_bytes = size_bytes

    async def _save(self, group_id: str, tracked: _Tracked, generation: Generation) -> None:
        try:
            await self._store.save_generation(group_id, generation)
        except sqlite3.Error as failure:
            not_available(failure)
            tracked.group.save_failed(generation, self._now())
        else:
            tracked.group.saved(generation, self._now())
        tracked.saving = None
        self._follow_up(group_id)

    def _forget(self, group_id: str) -> None:
        """Delete the generation of a group from the store, in the background."""

        async def forget() -> None:
            try:
                await self._store.save_generation(group_id, None)
            except sqlite3.Error as failure:
                not_available(failure)

        task = asyncio.create_task(forget())
        self._forgetting.add(task)
        task.add_done_callback(self._forgetting.discard)

    def _watch(self, group_id: str, tracked: _Tracked) -> None:
        """Set the timer of the group to its deadline. A timer that is early does no harm."""
        deadline = tracked.group.deadline
        if tracked.timer is not None:
            if tracked.timer.when() <= deadline:
                return
            tracked.timer.cancel()
        tracked.timer = asyncio.get_running_loop().call_at(deadline, self._expire, group_id, tracked)

    def _expire(self, group_id: str, tracked: _Tracked) -> None:
        assert tracked.timer is not None
        now = max(tracked.timer.when(), self._now())  # the loop may call a little early
        tracked.timer = None
        tracked.group.expire(now)
        self._follow_up(group_id)

    def _now(self) -> float:
        return asyncio.get_running_loop().time()


def _size_bytes(group_id: str, group: Group) -> int:
    """Return the bytes that are charged for a group."""
    return len(group_id) + group.roster.size_bytes
