"""A group whose members do anything at any time."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kafkafmt.serve.groups.group import GroupState
from kafkafmt.serve.groups.member import Join, Sync
from serve.groups.scene import REBALANCE, SESSION, Scene


class AnyEvents(RuleBasedStateMachine):
    """Members that do anything at any time: every request is answered once, and none waits for longer than it may."""

    members = st.integers(0, 7)  # a place among those that are there, or nobody's
    instances = st.sampled_from([None, None, "i1", "i2"])

    def __init__(self) -> None:
        super().__init__()
        self.scene = Scene(max_size=4)
        self.requests: list[tuple[float, Join | Sync]] = []

    def member_id(self, place: int) -> str:
        roster = self.scene.group.roster
        ids = ["", "nobody", *roster.members, *roster.pending_deadlines]
        return ids[place % len(ids)]

    @rule(
        member=members,
        instance=instances,
        flags=st.tuples(st.booleans(), st.booleans()),
        protocols=st.lists(st.sampled_from(["range", "sticky"]), min_size=1, unique=True),
        metadata=st.sampled_from([b"a", b"b"]),
    )
    def join(
        self,
        member: str,
        instance: str | None,
        flags: tuple[bool, bool],
        protocols: list[str],
        metadata: bytes,
    ) -> None:
        join = self.scene.join(
            self.member_id(member),
            instance_id=instance,
            needs_member_id=flags[0],
            can_skip_assignment=flags[1],
            protocols=dict.fromkeys(protocols, metadata),
        )
        self.requests.append((self.scene.at, join))

    @rule(member=members, instance=instances)
    def sync(self, member: int, instance: str | None) -> None:
        self.requests.append(
            (self.scene.at, self.scene.sync(self.member_id(member), {"m1": b"p"}, instance_id=instance))
        )

    @rule(member=members, instance=instances)
    def heartbeat(self, member: int, instance: str | None) -> None:
        self.scene.heartbeat(self.member_id(member), instance_id=instance)

    @rule(member=members, instance=instances)
    def commit(self, member: int, instance: str | None) -> None:
        self.scene.commit(self.member_id(member), instance_id=instance)

    @rule(member=members, instance=instances)
    def leave(self, member: int, instance: str | None) -> None:
        self.scene.leave(self.member_id(member), instance)

    @rule(choice=st.randoms(use_true_random=False))
    def vanish(self, choice: object) -> None:
        waiting = [each for each in self.requests if self.scene.waits(each[1])]
        if waiting:
            gone = choice.choice(waiting)  # type: ignore[attr-defined]
            self.scene.group.abandon(gone[1], self.scene.at)
            self.requests.remove(gone)

    @rule(keeps=st.booleans())
    def keep_at_once_or_later(self, keeps: bool) -> None:
        self.scene.keeps = keeps

    @precondition(lambda self: self.scene.group.unsaved is not None)
    @rule(succeeds=st.booleans())
    def keep(self, succeeds: bool) -> None:
        (self.scene.keep if succeeds else self.scene.fail_to_keep)()

    @precondition(lambda self: self.scene.has_kept)
    @rule()
    def restart(self) -> None:
        self.requests = []
        self.scene.restart()

    @rule(seconds=st.sampled_from([1.0, 5.0, SESSION, REBALANCE]))
    def wait(self, seconds: float) -> None:
        if self.scene.group.unsaved is not None:
            self.scene.keep()
        self.scene.wait(seconds)

    @invariant()
    def nobody_waits_for_ever(self) -> None:
        self.requests = [each for each in self.requests if self.scene.waits(each[1])]
        for since, _ in self.requests:
            assert self.scene.at - since <= 2 * REBALANCE + SESSION

    @invariant()
    def the_roster_holds_together(self) -> None:
        group = self.scene.group
        roster = group.roster
        assert len(roster) <= 4
        assert (roster.leader_id in roster.members) == bool(roster.members)
        assert (group.state is GroupState.EMPTY) <= (not roster.members)
        if group.unsaved is not None:
            group.unsaved.check()
        for member_id, member in roster.members.items():
            assert member.member_id == member_id
            if member.instance_id is not None:
                assert roster.static_member(member.instance_id) is member

    def teardown(self) -> None:
        if self.scene.group.unsaved is not None:
            self.scene.keep()
        self.scene.wait(10 * REBALANCE + 1000)
        assert len(self.scene.group.roster) == 0
        assert not [each for each in self.requests if self.scene.waits(each[1])]


TestAnyEvents = AnyEvents.TestCase
TestAnyEvents.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
