"""One group as a state machine: Kafka's classic rebalance protocol, without sockets, timers or a clock.

Requests and the time come in as method calls; `take_answers` returns the answers. A join is answered when all members
have joined. A sync is answered when the leader has sent the assignments and they are saved. `unsaved` is the generation
to make durable before its members get their answers; the caller then calls `saved` or `save_failed`. `deadline` is the
latest time at which `expire` must be called. Times are seconds of any monotonic clock.

The rules are those of Kafka's own coordinator: KIP-62 (rebalance timeout), KIP-134 (initial delay), KIP-345 (static
members), KIP-394 (member ids first), KIP-559 (protocols compared), KIP-814 (assignment skipped). It differs for two
requests that Kafka does not answer: a request that a later one of the same member replaces gets
REBALANCE_IN_PROGRESS, and a request whose member is removed gets UNKNOWN_MEMBER_ID.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from math import inf
from typing import TypeAlias

from kafka import errors

from kafkafmt.serve.groups.generation import Generation
from kafkafmt.serve.groups.member import (
    UNKNOWN_MEMBER_ID,
    Error,
    Join,
    JoinResult,
    Member,
    MemberIdentity,
    MemberMetadata,
    Sync,
    SyncResult,
)
from kafkafmt.serve.groups.roster import Roster

Answer: TypeAlias = tuple[Join, JoinResult] | tuple[Sync, SyncResult]

# Seconds. A member cannot send heartbeats before its first join is answered; its client has sent another by then.
_NEW_MEMBER_JOIN_TIMEOUT = 300.0
# Seconds. Static members that do not join again may have a rebalance timeout of 0. Without a pause, a rebalance that
# waits for them would end and begin all the time.
_LEAST_WAIT_FOR_STATIC_MEMBERS = 1.0


class GroupState(Enum):
    """The states of a group, by the names that Kafka's tools show."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"  # reported for a group that does not exist


class Group:
    """One group. initial_rebalance_delay: seconds that the first members wait for more; max_size: in members."""

    def __init__(self, *, initial_rebalance_delay: float, max_size: int) -> None:
        self.state = GroupState.EMPTY
        self.generation_id = 0
        self.protocol_name: str | None = None
        self.roster = Roster()
        self.deadline = inf
        self.unsaved: Generation | None = None
        self._initial_rebalance_delay = initial_rebalance_delay
        self._max_size = max_size
        self._join_deadline = inf
        self._sync_deadline = inf
        self._initial_delay_left: float | None = None  # None: the rebalance does not wait for more members
        self._member_was_added = False
        self._answers: list[Answer] = []
        self._answers_when_saved: dict[Join, JoinResult] = {}

    @classmethod
    def restored(cls, generation: Generation, *, initial_rebalance_delay: float, max_size: int) -> Group:
        """Return a stable group in a saved generation. Its sessions begin with `begin_sessions`."""
        group = cls(initial_rebalance_delay=initial_rebalance_delay, max_size=max_size)
        group.state = GroupState.STABLE
        group.generation_id = generation.generation_id
        group.protocol_name = generation.protocol_name
        group.roster = Roster.restored(generation)
        return group

    def begin_sessions(self, now: float) -> None:
        """Start the session timeouts of all members now."""
        for member in self.roster.members.values():
            self._restart_session(member, now)

    def take_answers(self) -> list[Answer]:
        """Return the answers since the last call."""
        answers, self._answers = self._answers, []
        return answers

    # Requests

    def join(self, join: Join, now: float) -> None:
        """Add a member, or let it join again. It is answered when the rebalance that it takes part in completes."""
        if not self.roster.supports(join):
            self._answers.append((join, join.refused(errors.InconsistentGroupProtocolError)))
        elif join.member_id == UNKNOWN_MEMBER_ID:
            self._join_without_id(join, now)
        elif join.instance_id is None and join.member_id in self.roster.pending_deadlines:
            del self.roster.pending_deadlines[join.member_id]
            self._add(join, now)
        else:
            error = self.roster.identity_error(join.member_id, join.instance_id)
            if error is not None:
                self._answers.append((join, join.refused(error)))
            else:
                self._join_again(self.roster.members[join.member_id], join, now)
        self._check_join(now)

    def sync(self, sync: Sync, now: float) -> None:
        """Request an assignment. The request is answered when the leader has sent it and it is saved."""
        error = self._sync_error(sync)
        if error is not None:
            self._answers.append((sync, sync.refused(error)))
            return
        member = self.roster.members[sync.identity.member_id]
        self._answer_sync(member, sync.refused(errors.RebalanceInProgressError), now)
        member.awaiting_sync = sync
        member.needs_sync = False
        if self.state is GroupState.STABLE:
            self._answer_sync(member, self._assigned(member), now)
        elif member.member_id == self.roster.leader_id and self.unsaved is None:
            for each in self.roster.members.values():
                each.assignment = sync.assignments.get(each.member_id, b"")
            self._save()

    def heartbeat(self, identity: MemberIdentity, now: float) -> Error:
        """Extend a member's session. Returns RebalanceInProgress if the member must join again."""
        error = self._member_error(identity)
        if error is not None:
            return error
        self._restart_session(self.roster.members[identity.member_id], now)
        if self.state is GroupState.PREPARING_REBALANCE:
            return errors.RebalanceInProgressError
        return errors.NoError

    def leave(self, member_id: str, instance_id: str | None, now: float) -> Error:
        """Remove a member. Without a member id, remove the static member of that instance id, as administrators do."""
        if self.roster.pending_deadlines.pop(member_id, None) is not None:
            self._check_join(now)
            return errors.NoError
        static = self.roster.static_member(instance_id)
        if member_id == UNKNOWN_MEMBER_ID and static is not None:
            member_id = static.member_id
        error = self.roster.identity_error(member_id, instance_id)
        if error is not None:
            return error
        self._remove([self.roster.members[member_id]], now)
        return errors.NoError

    def commit(self, identity: MemberIdentity, now: float) -> Error:
        """Return NoError if that member may commit offsets now, else the error. A commit restarts its session."""
        if self.state is GroupState.EMPTY and identity.generation_id < 0:
            return errors.NoError
        error = self._member_error(identity)
        if error is not None:
            return error
        if self.state is GroupState.COMPLETING_REBALANCE:
            return errors.RebalanceInProgressError
        self._restart_session(self.roster.members[identity.member_id], now)
        return errors.NoError

    def abandon(self, request: Join | Sync, now: float) -> None:
        """Drop a waiting request whose client has disconnected.

        A member that was never in a generation is removed. Others may come back within their session timeout.
        """
        for member in self.roster.members.values():
            if request in (member.awaiting_join, member.awaiting_sync):
                member.awaiting_join = member.awaiting_sync = None
                self._restart_session(member, now)
                if member.is_new:
                    self._remove([member], now)
                return

    def saved(self, generation: Generation, now: float) -> None:
        """Answer the members of a generation that is durable now, unless a later one has replaced it."""
        if generation is not self.unsaved:
            return
        self.unsaved = None
        self.state = GroupState.STABLE
        answers, self._answers_when_saved = self._answers_when_saved, {}
        for member in self.roster.members.values():
            if member.awaiting_join in answers:
                self._answer_join(member, answers[member.awaiting_join])
                self._restart_session(member, now)
            self._answer_sync(member, self._assigned(member), now)

    def save_failed(self, generation: Generation, now: float) -> None:
        """Make the members of a generation that was not saved join again, unless a later one has replaced it."""
        if generation is not self.unsaved:
            return
        for member in self.roster.members.values():
            self._answer_sync(member, SyncResult(errors.CoordinatorNotAvailableError), now)
        self._rebalance(now)
        self._check_join(now)

    def expire(self, now: float) -> None:
        """Remove the members whose sessions have expired, and end rebalances that are due, without late members."""
        roster = self.roster
        for member_id in [each for each, deadline in roster.pending_deadlines.items() if deadline <= now]:
            del roster.pending_deadlines[member_id]
        due = [member for member in roster.members.values() if member.deadline <= now]
        for member in due:
            if member.is_waiting and not member.is_new:
                member.deadline = inf  # until it is answered: meanwhile it sends no heartbeats
        self._remove([member for member in due if member.deadline <= now], now)
        self._check_join(now)
        if self._sync_deadline <= now:
            self._expire_sync(now)
        self.deadline = min(self._join_deadline, self._sync_deadline, roster.deadline)

    # Members

    def _join_without_id(self, join: Join, now: float) -> None:
        static = self.roster.static_member(join.instance_id)
        if static is not None:
            self._replace_static_member(static, join, now)
        elif len(self.roster) >= self._max_size:
            self._answers.append((join, join.refused(errors.GroupMaxSizeReachedError)))
        elif join.needs_member_id and join.instance_id is None:
            self.roster.pending_deadlines[join.new_member_id] = now + join.session_timeout
            self._watch(now + join.session_timeout)
            self._answers.append((join, JoinResult(errors.MemberIdRequiredError, join.new_member_id)))
        else:
            self._add(join, now)

    def _add(self, join: Join, now: float) -> None:
        member = self.roster.add(join)
        member.deadline = now + _NEW_MEMBER_JOIN_TIMEOUT
        self._watch(member.deadline)
        self._member_was_added = True
        self._rebalance(now)

    def _join_again(self, member: Member, join: Join, now: float) -> None:
        leads = member.member_id == self.roster.leader_id
        stands = self.state is GroupState.COMPLETING_REBALANCE or (
            self.state is GroupState.STABLE and not leads
        )
        if stands and member.offers(join.protocols):
            # Its client did not get the answer and gets it again. The leader of a stable group wants a rebalance.
            self._answers.append((join, self._joined(member)))
            return
        self._answer_join(member, join.refused(errors.RebalanceInProgressError))
        self.roster.join_again(member, join)
        self._rebalance(now)

    def _replace_static_member(self, member: Member, join: Join, now: float) -> None:
        """Replace a static member that has come back without its member id."""
        old_leader_id = self.roster.leader_id
        self._answer_join(member, JoinResult(errors.FencedInstanceIdError, member.member_id))
        self._answer_sync(member, SyncResult(errors.FencedInstanceIdError), now)
        self.roster.rename(member, join.new_member_id)
        self.roster.join_again(member, join)
        self._restart_session(member, now)

        if self.state is not GroupState.STABLE or self.roster.selected_protocol() != self.protocol_name:
            self._rebalance(now)
            return
        if join.can_skip_assignment:
            leads = member.member_id == self.roster.leader_id
            result = self._joined(member, skip_assignment=leads)
        else:
            # With its former id as the leader's, an older client does not act as the leader, and assigns nothing.
            result = self._joined(member, leader_id=old_leader_id)
        self._answers_when_saved[join] = result
        self._save()

    def _remove(self, members: Sequence[Member], now: float) -> None:
        for member in members:
            self._answer_join(member, JoinResult(errors.UnknownMemberIdError, UNKNOWN_MEMBER_ID))
            self._answer_sync(member, SyncResult(errors.UnknownMemberIdError), now)
        self.roster.forget(members)
        if members:
            self._rebalance(now)
            self._check_join(now)

    def _member_error(self, identity: MemberIdentity) -> Error | None:
        error = self.roster.identity_error(identity.member_id, identity.instance_id)
        if error is None and identity.generation_id != self.generation_id:
            return errors.IllegalGenerationError
        return error

    def _sync_error(self, sync: Sync) -> Error | None:
        error = self._member_error(sync.identity)
        if error is not None:
            return error
        if sync.protocol_type not in (None, self.roster.protocol_type):
            return errors.InconsistentGroupProtocolError
        if sync.protocol_name not in (None, self.protocol_name):
            return errors.InconsistentGroupProtocolError
        if self.state is GroupState.PREPARING_REBALANCE:
            return errors.RebalanceInProgressError
        return None

    def _restart_session(self, member: Member, now: float) -> None:
        member.deadline = now + member.session_timeout
        self._watch(member.deadline)

    def _watch(self, deadline: float) -> None:
        self.deadline = min(self.deadline, deadline)

    # Rebalances

    def _rebalance(self, now: float) -> None:
        """Begin a rebalance, unless members are already joining one."""
        if self.state is GroupState.PREPARING_REBALANCE:
            return
        for member in self.roster.members.values():
            self._answer_sync(member, SyncResult(errors.RebalanceInProgressError), now)
        self._sync_deadline = inf
        self.unsaved = None
        self._answers_when_saved.clear()
        if self.state is GroupState.EMPTY:
            self._initial_delay_left = self.roster.rebalance_timeout
            self._wait_for_more(now)
        else:
            self._wait_for_join(self.roster.rebalance_timeout, now)
        self.state = GroupState.PREPARING_REBALANCE

    def _wait_for_more(self, now: float) -> None:
        """Let the first members wait for more, up to the rebalance timeout in all (KIP-134)."""
        assert self._initial_delay_left is not None
        delay = min(self._initial_rebalance_delay, self._initial_delay_left)
        self._initial_delay_left -= delay
        self._member_was_added = False
        self._wait_for_join(delay, now)

    def _wait_for_join(self, timeout: float, now: float) -> None:
        self._join_deadline = now + timeout
        self._watch(self._join_deadline)

    def _check_join(self, now: float) -> None:
        """Complete the rebalance if all members have joined, or its time is over."""
        if self.state is not GroupState.PREPARING_REBALANCE:
            return
        is_over = self._join_deadline <= now
        if self._initial_delay_left is None:
            have_joined = all(member.awaiting_join for member in self.roster.members.values())
            if is_over or (have_joined and not self.roster.pending_deadlines):
                self._complete_join(now)
        elif is_over and self._member_was_added and self._initial_delay_left > 0:
            self._wait_for_more(now)
        elif is_over:
            self._complete_join(now)

    def _complete_join(self, now: float) -> None:
        """Begin the next generation with the members that have joined, and with all static members."""
        members = self.roster.members
        self._initial_delay_left = None
        joined = [member for member in members.values() if member.awaiting_join]
        late = [member for member in members.values() if not member.awaiting_join and not member.instance_id]
        self.roster.forget(late)
        if members and not joined:
            self._wait_for_join(max(self.roster.rebalance_timeout, _LEAST_WAIT_FOR_STATIC_MEMBERS), now)
            return
        self._join_deadline = inf
        self.generation_id += 1
        if not members:
            self.protocol_name = None
            self.state = GroupState.EMPTY
            return
        if self.roster.leader_id not in {member.member_id for member in joined}:
            self.roster.leader_id = joined[0].member_id
        self.protocol_name = self.roster.selected_protocol()
        self.state = GroupState.COMPLETING_REBALANCE
        for member in members.values():
            member.is_new = False
            member.needs_sync = True
            self._answer_join(member, self._joined(member))
            self._restart_session(member, now)
        self._sync_deadline = now + self.roster.rebalance_timeout
        self._watch(self._sync_deadline)

    def _expire_sync(self, now: float) -> None:
        """Remove the members that have not asked for their assignment."""
        self._sync_deadline = inf
        self._remove([member for member in self.roster.members.values() if member.needs_sync], now)

    def _save(self) -> None:
        """Request that the generation is saved as it is now. This replaces an earlier request."""
        assert self.roster.protocol_type is not None
        assert self.roster.leader_id is not None
        assert self.protocol_name is not None
        self.unsaved = Generation(
            self.generation_id,
            self.roster.protocol_type,
            self.protocol_name,
            self.roster.leader_id,
            tuple(member.snapshot() for member in self.roster.members.values()),
        )

    # Answers

    def _joined(
        self, member: Member, *, leader_id: str | None = None, skip_assignment: bool = False
    ) -> JoinResult:
        leader_id = leader_id or self.roster.leader_id
        assert leader_id is not None
        assert self.protocol_name is not None
        leads = member.member_id == leader_id
        others = self.roster.members.values() if leads else ()
        return JoinResult(
            error=errors.NoError,
            member_id=member.member_id,
            generation_id=self.generation_id,
            protocol_type=self.roster.protocol_type,
            protocol_name=self.protocol_name,
            leader_id=leader_id,
            members=[
                MemberMetadata(each.member_id, each.instance_id, each.protocols[self.protocol_name])
                for each in others
            ],
            skip_assignment=skip_assignment,
        )

    def _assigned(self, member: Member) -> SyncResult:
        return SyncResult(errors.NoError, self.roster.protocol_type, self.protocol_name, member.assignment)

    def _answer_join(self, member: Member, result: JoinResult) -> None:
        if member.awaiting_join is not None:
            self._answers.append((member.awaiting_join, result))
            member.awaiting_join = None

    def _answer_sync(self, member: Member, result: SyncResult, now: float) -> None:
        if member.awaiting_sync is not None:
            self._answers.append((member.awaiting_sync, result))
            member.awaiting_sync = None
            self._restart_session(member, now)
