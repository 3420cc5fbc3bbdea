"""Static members of a group (KIP-345), event by event: who takes whose place, and when others must join again."""

from __future__ import annotations

from kafka import errors

from kafkafmt.serve.groups.group import GroupState
from kafkafmt.serve.groups.member import MemberMetadata
from serve.groups.scene import SESSION, Scene


def test_static_member_when_it_restarts_then_takes_its_place_without_a_rebalance(scene: Scene) -> None:
    scene.join(instance_id="i1", needs_member_id=True)
    scene.sync("m1", {"m1": b"p0"})
    result = scene.joined(scene.join(instance_id="i1", needs_member_id=True))
    assert (result.error, result.member_id, result.generation_id) == (errors.NoError, "m2", 1)
    assert result.leader_id == "m1", "so that an older client does not assign"
    assert scene.group.state is GroupState.STABLE
    assert scene.synced(scene.sync("m2", instance_id="i1")).assignment == b"p0"


def test_static_leader_when_it_can_skip_the_assignment_then_leads_and_is_told_to(scene: Scene) -> None:
    scene.join(instance_id="i1")
    scene.sync("m1", {"m1": b"p0"})
    result = scene.joined(scene.join(instance_id="i1", can_skip_assignment=True))
    assert (result.leader_id, result.skip_assignment) == ("m2", True)
    assert result.members == [MemberMetadata("m2", "i1", b"range")]


def test_static_member_when_another_has_its_place_then_fenced(scene: Scene) -> None:
    scene.join(instance_id="i1")
    scene.sync("m1", {"m1": b"p0"})
    scene.join(instance_id="i1")
    assert scene.heartbeat("m1", instance_id="i1") is errors.FencedInstanceIdError
    assert scene.commit("m1", instance_id="i1") is errors.FencedInstanceIdError
    assert scene.synced(scene.sync("m1", instance_id="i1")).error is errors.FencedInstanceIdError
    assert scene.leave("m1", "i1") is errors.FencedInstanceIdError
    assert scene.joined(scene.join("m1", instance_id="i1")).error is errors.FencedInstanceIdError
    assert scene.heartbeat("m1") is errors.UnknownMemberIdError


def test_static_member_when_it_waits_and_another_takes_its_place_then_told(scene: Scene) -> None:
    scene.stable(1)
    waiting = scene.join(instance_id="i1")
    scene.join(instance_id="i1")
    assert scene.joined(waiting).error is errors.FencedInstanceIdError


def test_static_member_when_it_waits_for_its_assignment_and_another_comes_then_told(scene: Scene) -> None:
    scene.stable(1)
    scene.join(instance_id="i1")
    scene.join("m1")
    waiting = scene.sync("m2", instance_id="i1")
    scene.join(instance_id="i1")
    assert scene.synced(waiting).error is errors.FencedInstanceIdError


def test_static_member_when_it_restarts_with_other_protocols_then_rebalance(scene: Scene) -> None:
    both = {"range": b"", "sticky": b""}
    scene.join(instance_id="i1", protocols=both)
    scene.sync("m1", {"m1": b"p0"})
    again = scene.join(instance_id="i1", protocols={"sticky": b"", "range": b""})
    assert (scene.joined(again).generation_id, scene.joined(again).protocol_name) == (2, "sticky")


def test_static_member_when_it_restarts_before_the_assignment_then_rebalance(scene: Scene) -> None:
    scene.join(instance_id="i1")
    assert scene.joined(scene.join(instance_id="i1")).generation_id == 2


def test_static_members_when_they_are_late_then_stay_until_their_session_is_over(scene: Scene) -> None:
    scene.join(instance_id="i1", session=100, rebalance=20)
    scene.sync("m1", {"m1": b"p0"})
    second = scene.join(session=100, rebalance=20)
    scene.wait(20)
    assert scene.joined(second).generation_id == 2
    assert [member.instance_id for member in scene.joined(second).members] == ["i1", None]


def test_static_members_when_none_joins_again_then_sessions_decide(scene: Scene) -> None:
    scene.join(instance_id="i1", session=100, rebalance=20)
    scene.sync("m1", {"m1": b"p0"})
    abandoned = scene.join("", session=100, rebalance=20)
    scene.group.abandon(abandoned, scene.at)
    scene.wait(90)
    assert scene.heartbeat("m1", instance_id="i1") is errors.RebalanceInProgressError
    scene.wait(100)
    assert len(scene.group.roster) == 0


def test_static_members_when_they_give_no_time_to_join_again_then_the_coordinator_pauses(
    scene: Scene,
) -> None:
    scene.stable(1, instance_id="i1")
    second = scene.join(instance_id="i2")
    scene.join("m1", instance_id="i1")
    for member_id, instance_id in (("m1", "i1"), (scene.joined(second).member_id, "i2")):
        scene.sync(member_id, instance_id=instance_id)
    scene.join(instance_id="i1", rebalance=0)
    second = scene.join(instance_id="i2", rebalance=0)
    assert scene.group.state is GroupState.STABLE
    scene.leave("", "i1")
    assert scene.group.state is GroupState.PREPARING_REBALANCE
    scene.wait(SESSION)
    assert len(scene.group.roster) == 0


def test_static_member_when_an_administrator_removes_it_then_gone(scene: Scene) -> None:
    scene.join(instance_id="i1")
    assert scene.leave("", "i2") is errors.UnknownMemberIdError
    assert scene.leave("", "i1") is errors.NoError
    assert scene.heartbeat("m1", instance_id="i1") is errors.UnknownMemberIdError
