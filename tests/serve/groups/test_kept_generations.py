"""Generations of a group that are kept on the disk: nobody is told of one before, and a restart continues with it."""

from __future__ import annotations

from kafka import errors

from kafkafmt.serve.groups.group import Group, GroupState
from kafkafmt.serve.groups.member import MemberMetadata
from serve.groups.scene import SESSION, Scene

# Generations that are kept


def test_sync_when_the_generation_is_not_kept_yet_then_waits(scene: Scene) -> None:
    scene.keeps = False
    scene.join()
    waiting = scene.sync("m1", {"m1": b"p0"})
    assert scene.waits(waiting)
    assert scene.heartbeat("m1") is errors.NoError
    assert scene.commit("m1") is errors.RebalanceInProgressError
    scene.keep()
    assert scene.synced(waiting).assignment == b"p0"
    assert scene.commit("m1") is errors.NoError


def test_sync_when_the_generation_cannot_be_kept_then_members_join_again(scene: Scene) -> None:
    scene.stable(2)
    scene.keeps = False
    scene.join("m1")
    scene.join("m2")
    syncs = scene.sync("m1", {}), scene.sync("m2")
    scene.fail_to_keep()
    assert [scene.synced(sync).error for sync in syncs] == [errors.CoordinatorNotAvailableError] * 2
    assert scene.heartbeat("m1") is errors.RebalanceInProgressError
    scene.join("m1")
    assert scene.joined(scene.join("m2")).generation_id == 4


def test_generation_when_a_rebalance_began_before_it_was_kept_then_nobody_is_told_of_it(scene: Scene) -> None:
    scene.keeps = False
    scene.join()
    sync = scene.sync("m1", {"m1": b"p0"})
    late = scene.group.unsaved
    assert late is not None
    scene.join()
    assert scene.synced(sync).error is errors.RebalanceInProgressError
    scene.group.saved(late, scene.at)
    scene.group.save_failed(late, scene.at)
    assert scene.group.state is GroupState.PREPARING_REBALANCE


def test_leader_when_it_asks_again_before_its_assignments_are_kept_then_these_hold(scene: Scene) -> None:
    scene.keeps = False
    scene.join()
    lost, again = scene.sync("m1", {"m1": b"p0"}), scene.sync("m1", {"m1": b"p1"})
    scene.keep()
    assert scene.synced(lost).error is errors.RebalanceInProgressError
    assert scene.synced(again).assignment == b"p0"


def test_static_members_when_they_restart_then_told_once_that_is_kept(scene: Scene) -> None:
    scene.stable(1, instance_id="i1")
    second = scene.join(instance_id="i2")
    scene.join("m1", instance_id="i1")
    scene.sync("m1", {"m1": b"p0"}, instance_id="i1")
    assert scene.joined(second).member_id == "m2"
    scene.keeps = False
    joins = scene.join(instance_id="i1"), scene.join(instance_id="i2")
    assert [scene.waits(join) for join in joins] == [True, True]
    scene.keep()
    results = [scene.joined(join) for join in joins]
    assert [(each.member_id, each.generation_id, each.leader_id) for each in results] == [
        ("m4", 2, "m1"),
        ("m5", 2, "m4"),
    ]
    scene.restart()
    assert scene.heartbeat("m4", instance_id="i1") is errors.NoError
    assert scene.heartbeat("m2", instance_id="i2") is errors.FencedInstanceIdError


def test_static_member_when_its_new_id_cannot_be_kept_then_rebalance(scene: Scene) -> None:
    scene.stable(1, instance_id="i1")
    scene.keeps = False
    again = scene.join(instance_id="i1")
    scene.fail_to_keep()
    result = scene.joined(again)
    assert (result.member_id, result.leader_id, result.generation_id) == ("m2", "m2", 2)


# Groups whose coordinator started again


def test_members_when_the_coordinator_starts_again_then_go_on_without_a_rebalance(scene: Scene) -> None:
    scene.stable(2)
    scene.restart()
    for member_id in ("m1", "m2"):
        assert scene.heartbeat(member_id) is errors.NoError
        assert scene.commit(member_id) is errors.NoError
        synced = scene.synced(scene.sync(member_id, protocol_type="consumer", protocol_name="range"))
        assert (synced.error, synced.assignment) == (errors.NoError, member_id.encode())
    joined = scene.joined(scene.join("m2"))
    assert (joined.error, joined.generation_id, joined.leader_id) == (errors.NoError, 2, "m1")
    assert scene.group.state is GroupState.STABLE


def test_members_when_the_coordinator_starts_again_then_one_that_is_gone_expires(scene: Scene) -> None:
    scene.stable(2)
    scene.wait(SESSION - 1)
    scene.restart()
    scene.wait(SESSION - 1)
    assert scene.heartbeat("m1") is errors.NoError
    scene.wait(1)
    assert scene.heartbeat("m2") is errors.UnknownMemberIdError
    assert scene.heartbeat("m1") is errors.RebalanceInProgressError
    joined = scene.joined(scene.join("m1"))
    assert (joined.generation_id, joined.members) == (3, [MemberMetadata("m1", None, b"range")])


def test_members_when_the_coordinator_starts_again_during_a_rebalance_then_in_the_generation_before(
    scene: Scene,
) -> None:
    scene.stable(1)
    scene.join()
    scene.join("m1")
    scene.keeps = False
    scene.sync("m1", {"m1": b"p0", "m2": b"p1"})
    scene.restart()
    assert scene.heartbeat("m1", 2) is errors.IllegalGenerationError
    assert scene.commit("m1", 2) is errors.IllegalGenerationError
    assert scene.synced(scene.sync("m1", {}, generation_id=2)).error is errors.IllegalGenerationError
    assert scene.heartbeat("m2", 2) is errors.UnknownMemberIdError
    second = scene.join()
    first = scene.join("m1")
    assert scene.joined(first).generation_id == scene.joined(second).generation_id == 2


def test_static_member_when_it_and_the_coordinator_start_again_then_takes_its_place(scene: Scene) -> None:
    scene.join(instance_id="i1")
    scene.sync("m1", {"m1": b"p0"})
    scene.restart()
    assert scene.joined(scene.join(instance_id="i1")).generation_id == 1
    assert scene.synced(scene.sync("m2", instance_id="i1")).assignment == b"p0"
    assert scene.heartbeat("m1", instance_id="i1") is errors.FencedInstanceIdError


def test_members_when_their_sessions_have_not_begun_then_nobody_is_taken_for_dead(scene: Scene) -> None:
    scene.stable(2)
    scene.keeps = False
    scene.join("m1")
    scene.join("m2")
    scene.sync("m1")
    assert scene.group.unsaved is not None
    group = Group.restored(scene.group.unsaved, initial_rebalance_delay=0, max_size=10)
    assert group.deadline == float("inf")
    group.expire(scene.at + 1e6)
    assert set(group.roster.members) == {"m1", "m2"}
