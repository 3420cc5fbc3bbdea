"""The membership of a group, event by event: Kafka's rules, each held against the answers and the time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from kafka import errors

from kafkafmt.serve.groups.group import GroupState
from kafkafmt.serve.groups.member import MemberMetadata
from serve.groups.scene import REBALANCE, SESSION, Scene

if TYPE_CHECKING:
    from _collections_abc import dict_keys


# Joining


def test_first_member_when_it_joins_then_leads_generation_1_and_sees_itself(scene: Scene) -> None:
    result = scene.joined(scene.join(protocols={"range": b"topics"}))
    assert result.error is errors.NoError
    assert (result.member_id, result.leader_id, result.generation_id) == ("m1", "m1", 1)
    assert (result.protocol_type, result.protocol_name) == ("consumer", "range")
    assert result.members == [MemberMetadata("m1", None, b"topics")]


def test_second_member_when_it_joins_then_waits_until_the_first_has_joined_again(scene: Scene) -> None:
    scene.stable(1)
    second = scene.join()
    assert scene.waits(second)
    assert scene.heartbeat("m1") is errors.RebalanceInProgressError
    first = scene.join("m1")
    assert scene.joined(first).generation_id == scene.joined(second).generation_id == 2
    assert [member.member_id for member in scene.joined(first).members] == ["m1", "m2"]
    assert (scene.joined(second).leader_id, scene.joined(second).members) == ("m1", [])


class CountedProtocols(dict[str, bytes]):
    """Protocols that count how often somebody goes through them."""

    def __init__(self, protocols: dict[str, bytes]) -> None:
        super().__init__(protocols)
        self.passes = 0

    def __iter__(self) -> Iterator[str]:
        self.passes += 1
        return super().__iter__()

    def keys(self) -> dict_keys[str, bytes]:
        self.passes += 1
        return super().keys()


def test_members_when_one_more_joins_then_the_protocols_of_the_others_are_not_looked_at(scene: Scene) -> None:
    offered = [
        CountedProtocols({"range": b"", **{f"own-{member}-{number}": b"" for number in range(10)}})
        for member in range(20)
    ]
    joins = [scene.join(protocols=protocols) for protocols in offered]
    passes = [protocols.passes for protocols in offered]
    scene.join(protocols={"range": b""})
    refused = scene.join(protocols={"own-0-1": b""})
    assert [protocols.passes for protocols in offered] == passes
    scene.join("m2", protocols={"own-0-1": b"", "range": b""})
    passes[1] = offered[1].passes  # what that member offered is counted no more
    assert [protocols.passes for protocols in offered] == passes
    assert scene.joined(refused).error is errors.InconsistentGroupProtocolError
    assert scene.joined(joins[0]).protocol_name == "range"


def test_members_when_one_does_not_join_again_in_time_then_it_is_out(scene: Scene) -> None:
    scene.stable(2)
    third = scene.join()
    scene.join("m1")
    for _ in range(int(REBALANCE / SESSION * 2)):  # m2 is alive, but does not join
        scene.heartbeat("m2")
        scene.wait(SESSION / 2)
    assert scene.joined(third).generation_id == 3
    assert scene.heartbeat("m2") is errors.UnknownMemberIdError


def test_leader_when_it_is_late_then_another_leads(scene: Scene) -> None:
    scene.stable(2)
    scene.wait(SESSION - 1)
    assert scene.heartbeat("m2") is errors.NoError
    scene.wait(2)
    again = scene.join("m2")
    assert scene.joined(again).leader_id == "m2"
    assert [member.member_id for member in scene.joined(again).members] == ["m2"]


def test_member_when_unknown_then_it_is_told_so(scene: Scene) -> None:
    scene.stable(1)
    assert scene.joined(scene.join("never")).error is errors.UnknownMemberIdError


def test_new_member_when_the_group_is_full_then_refused_and_others_are_not(scene: Scene) -> None:
    scene = Scene(max_size=2)
    scene.stable(2)
    assert scene.joined(scene.join()).error is errors.GroupMaxSizeReachedError
    assert scene.heartbeat("m1") is errors.NoError
    assert scene.waits(scene.join("m1")), "the leader may have a rebalance"


def test_leader_when_it_joins_a_stable_group_again_then_all_have_to(scene: Scene) -> None:
    scene.stable(2)
    leader = scene.join("m1")
    assert scene.heartbeat("m2") is errors.RebalanceInProgressError
    scene.join("m2")
    assert scene.joined(leader).generation_id == 3


def test_follower_when_it_joins_again_with_the_same_metadata_then_nothing_changes(scene: Scene) -> None:
    scene.stable(2)
    result = scene.joined(scene.join("m2"))
    assert (result.error, result.generation_id, result.members) == (errors.NoError, 2, [])
    assert scene.heartbeat("m1") is errors.NoError


def test_follower_when_it_joins_again_with_other_metadata_then_rebalance(scene: Scene) -> None:
    scene.stable(2)
    assert scene.waits(scene.join("m2", protocols={"range": b"other topics"}))
    assert scene.heartbeat("m1") is errors.RebalanceInProgressError


def test_leader_when_it_did_not_get_the_answer_then_it_may_have_it_again(scene: Scene) -> None:
    first = scene.join()
    assert scene.joined(scene.join("m1")) == scene.joined(first)


def test_join_when_a_later_one_of_the_same_member_comes_then_only_that_waits(scene: Scene) -> None:
    scene.stable(2)
    lost = scene.join("m1")
    again = scene.join("m1")
    assert scene.joined(lost).error is errors.RebalanceInProgressError
    scene.join("m2")
    assert scene.joined(again).error is errors.NoError


# Protocols


def test_protocol_when_members_like_others_best_then_the_one_all_have_with_most_votes(scene: Scene) -> None:
    preferences = [("sticky", "range", "mine"), ("range", "sticky"), ("range", "sticky")]
    offers = [dict.fromkeys(names, b"") for names in preferences]
    first, *others = [scene.join(protocols=offer) for offer in offers]
    again = scene.join(scene.joined(first).member_id, protocols=offers[0])
    assert {scene.joined(join).protocol_name for join in (again, *others)} == {"range"}


@pytest.mark.parametrize(
    ("protocol_type", "protocols"),
    [("consumer", {"other": b""}), ("consumer", {}), ("connect", {"range": b""}), ("", {"range": b""})],
)
def test_new_member_when_it_has_no_protocol_of_the_others_then_refused(
    scene: Scene, protocol_type: str, protocols: dict[str, bytes]
) -> None:
    scene.stable(1)
    refused = scene.join(protocol_type=protocol_type, protocols=protocols)
    assert scene.joined(refused).error is errors.InconsistentGroupProtocolError


@pytest.mark.parametrize(("protocol_type", "protocols"), [("consumer", {}), ("", {"range": b""})])
def test_first_member_when_it_names_no_protocol_then_refused(
    scene: Scene, protocol_type: str, protocols: dict[str, bytes]
) -> None:
    refused = scene.join(protocol_type=protocol_type, protocols=protocols)
    assert scene.joined(refused).error is errors.InconsistentGroupProtocolError


# KIP-394: ids first


def test_new_member_when_it_needs_an_id_then_gets_one_and_joins_with_it(scene: Scene) -> None:
    told = scene.joined(scene.join(needs_member_id=True))
    assert (told.error, told.member_id, told.generation_id) == (errors.MemberIdRequiredError, "m1", -1)
    result = scene.joined(scene.join("m1", needs_member_id=True))
    assert (result.error, result.member_id, result.generation_id) == (errors.NoError, "m1", 1)


def test_rebalance_when_one_has_an_id_and_did_not_join_yet_then_waits_for_it(scene: Scene) -> None:
    scene.stable(1)
    scene.join(needs_member_id=True)
    first = scene.join("m1")
    assert scene.waits(first)
    scene.join("m2", needs_member_id=True)
    assert len(scene.joined(first).members) == 2


def test_rebalance_when_one_with_an_id_never_comes_back_then_goes_on_after_its_session(scene: Scene) -> None:
    scene.stable(1)
    scene.join(needs_member_id=True)
    first = scene.join("m1")
    scene.wait(SESSION)
    assert len(scene.joined(first).members) == 1
    assert scene.joined(scene.join("m2", needs_member_id=True)).error is errors.UnknownMemberIdError


def test_pending_member_when_it_leaves_then_the_rebalance_goes_on(scene: Scene) -> None:
    scene.stable(1)
    scene.join(needs_member_id=True)
    first = scene.join("m1")
    assert scene.leave("m2") is errors.NoError
    assert scene.joined(first).error is errors.NoError


def test_pending_members_when_they_are_many_then_count_for_the_size_of_the_group(scene: Scene) -> None:
    scene = Scene(max_size=2)
    scene.join(needs_member_id=True)
    scene.join(needs_member_id=True)
    assert scene.joined(scene.join(needs_member_id=True)).error is errors.GroupMaxSizeReachedError
    scene.wait(SESSION)
    assert len(scene.group.roster) == 0


# KIP-134: the initial delay


def test_first_members_when_there_is_an_initial_delay_then_are_one_generation(scene: Scene) -> None:
    scene = Scene(initial_rebalance_delay=3)
    first = scene.join()
    scene.wait(2)
    second = scene.join()
    scene.wait(1)
    assert scene.waits(first), "a member came, and more may"
    scene.wait(3)
    assert scene.joined(first).generation_id == scene.joined(second).generation_id == 1
    assert len(scene.joined(first).members) == 2


def test_initial_delay_when_members_keep_coming_then_ends_with_the_rebalance_timeout(scene: Scene) -> None:
    scene = Scene(initial_rebalance_delay=3)
    first = scene.join(rebalance=9)
    for _ in range(4):
        scene.wait(2)
        scene.join(rebalance=9)
    assert scene.waits(first)
    scene.wait(1)
    assert len(scene.joined(first).members) == 5


def test_initial_delay_when_longer_than_the_rebalance_timeout_then_that_counts(scene: Scene) -> None:
    scene = Scene(initial_rebalance_delay=30)
    first = scene.join(rebalance=5)
    scene.wait(5)
    assert scene.joined(first).generation_id == 1


# Assignments


def test_sync_when_the_leader_has_not_come_then_waits_for_its_assignments(scene: Scene) -> None:
    scene.stable(1)
    second = scene.join()
    scene.join("m1")
    waiting = scene.sync("m2")
    assert scene.waits(waiting)
    own = scene.sync("m1", {"m1": b"p0", "m2": b"p1", "gone": b"p2"})
    assert (scene.synced(own).assignment, scene.synced(waiting).assignment) == (b"p0", b"p1")
    assert scene.synced(own).protocol_name == "range"
    assert scene.group.state is GroupState.STABLE
    assert scene.joined(second).error is errors.NoError


def test_sync_when_a_later_one_of_the_same_member_comes_then_only_that_waits(scene: Scene) -> None:
    scene.stable(2)
    scene.join("m1")
    scene.join("m2")
    lost, again = scene.sync("m2"), scene.sync("m2")
    assert scene.synced(lost).error is errors.RebalanceInProgressError
    assert scene.waits(again)


def test_sync_when_its_member_leaves_over_another_connection_then_told(scene: Scene) -> None:
    scene.stable(2)
    scene.join("m1")
    scene.join("m2")
    waiting = scene.sync("m2")
    scene.leave("m2")
    assert scene.synced(waiting).error is errors.UnknownMemberIdError


def test_sync_when_the_group_is_stable_then_tells_the_assignment_again(scene: Scene) -> None:
    scene.stable(2)
    assert scene.synced(scene.sync("m2")).assignment == b"m2"


def test_member_when_the_leader_assigns_it_nothing_then_gets_nothing(scene: Scene) -> None:
    scene.join()
    assert scene.synced(scene.sync("m1", {})).assignment == b""


def test_sync_when_a_rebalance_begins_then_sent_back_to_join(scene: Scene) -> None:
    scene.stable(2)
    scene.join("m1")
    scene.join("m2")
    waiting = scene.sync("m2")
    scene.join()
    assert scene.synced(waiting).error is errors.RebalanceInProgressError
    assert scene.synced(scene.sync("m2")).error is errors.RebalanceInProgressError


@pytest.mark.parametrize(
    ("generation_id", "protocol_type", "protocol_name", "error"),
    [
        (0, None, None, errors.IllegalGenerationError),
        (None, "connect", "range", errors.InconsistentGroupProtocolError),
        (None, "consumer", "sticky", errors.InconsistentGroupProtocolError),
        (None, "consumer", "range", errors.NoError),
    ],
)
def test_sync_when_it_is_about_something_else_then_refused(
    scene: Scene, generation_id: int | None, protocol_type: str, protocol_name: str, error: type
) -> None:
    scene.stable(1)
    sync = scene.sync(
        "m1", generation_id=generation_id, protocol_type=protocol_type, protocol_name=protocol_name
    )
    assert scene.synced(sync).error is error


def test_members_when_they_do_not_ask_for_their_assignment_then_they_are_out(scene: Scene) -> None:
    scene.stable(2)
    scene.join("m1")
    scene.join("m2")
    waiting = scene.sync("m2")  # m1, who leads, only sends heartbeats
    for _ in range(int(REBALANCE / SESSION * 2)):
        assert scene.heartbeat("m1") is errors.NoError
        scene.wait(SESSION / 2)
    assert scene.heartbeat("m1") is errors.UnknownMemberIdError
    assert scene.synced(waiting).error is errors.RebalanceInProgressError
    assert scene.joined(scene.join("m2")).leader_id == "m2"


# Sessions


def test_member_when_its_session_is_over_then_out_and_others_join_again(scene: Scene) -> None:
    scene.stable(2)
    scene.wait(SESSION - 1)
    assert scene.heartbeat("m1") is errors.NoError
    scene.wait(2)
    assert scene.heartbeat("m2") is errors.UnknownMemberIdError
    assert scene.heartbeat("m1") is errors.RebalanceInProgressError
    assert scene.joined(scene.join("m1")).generation_id == 3


def test_member_when_it_sends_heartbeats_or_commits_then_stays(scene: Scene) -> None:
    scene.stable(2)
    for _ in range(5):
        scene.wait(SESSION - 1)
        assert scene.heartbeat("m1") is errors.NoError
        assert scene.commit("m2") is errors.NoError


def test_member_when_it_waits_for_others_then_needs_no_heartbeats(scene: Scene) -> None:
    scene.stable(2)
    scene.heartbeat("m2")
    join = scene.join("m1")
    for _ in range(4):
        scene.wait(SESSION - 1)
        scene.heartbeat("m2")
    scene.join("m2")
    assert scene.joined(join).error is errors.NoError
    scene.wait(SESSION - 1)
    assert scene.heartbeat("m1") is errors.NoError, "its session begins when it is answered"


def test_group_when_all_are_gone_then_nothing_is_left(scene: Scene) -> None:
    scene.stable(3)
    scene.wait(SESSION)
    assert len(scene.group.roster) == 0
    assert scene.group.state is GroupState.EMPTY
    assert scene.group.deadline == float("inf")


@pytest.mark.parametrize(
    ("member_id", "generation_id", "error"),
    [
        ("m1", 1, errors.NoError),
        ("m1", 0, errors.IllegalGenerationError),
        ("m9", 1, errors.UnknownMemberIdError),
        ("", -1, errors.UnknownMemberIdError),
    ],
)
def test_heartbeat_and_commit_when_of_another_member_or_generation_then_refused(
    scene: Scene, member_id: str, generation_id: int, error: type
) -> None:
    scene.stable(1)
    assert scene.heartbeat(member_id, generation_id) is error
    assert scene.commit(member_id, generation_id) is error


# Commits


def test_commit_when_a_rebalance_is_being_prepared_then_taken_and_later_not(scene: Scene) -> None:
    scene.stable(2)
    scene.join("m1")
    assert scene.commit("m2") is errors.NoError
    scene.join("m2")
    assert scene.commit("m2", generation_id=2) is errors.IllegalGenerationError
    assert scene.commit("m2") is errors.RebalanceInProgressError


def test_commit_when_the_group_has_no_members_then_taken_from_simple_consumers_alone(scene: Scene) -> None:
    scene.join(needs_member_id=True)
    assert scene.commit("", generation_id=-1) is errors.NoError
    assert scene.commit("m1", generation_id=0) is errors.UnknownMemberIdError


# Leaving


def test_member_when_it_leaves_then_others_go_on_at_once(scene: Scene) -> None:
    scene.stable(2)
    assert scene.leave("m1") is errors.NoError
    assert scene.heartbeat("m2") is errors.RebalanceInProgressError
    assert scene.joined(scene.join("m2")).leader_id == "m2"
    assert scene.leave("m1") is errors.UnknownMemberIdError


def test_member_when_it_leaves_while_others_wait_for_it_then_they_go_on(scene: Scene) -> None:
    scene.stable(2)
    first = scene.join("m1")
    scene.leave("m2")
    assert scene.joined(first).error is errors.NoError


def test_client_of_a_new_member_when_it_vanishes_then_nobody_waits_for_it(scene: Scene) -> None:
    scene.stable(1)
    vanished = scene.join()
    scene.group.abandon(vanished, scene.at)
    assert scene.joined(scene.join("m1")).members == [MemberMetadata("m1", None, b"range")]
    assert scene.waits(vanished)


def test_client_of_a_member_when_it_vanishes_then_it_may_come_back_within_its_session(scene: Scene) -> None:
    scene.stable(2)
    vanished = scene.join("m1")
    scene.group.abandon(vanished, scene.at)
    scene.wait(SESSION - 1)
    scene.heartbeat("m2")
    again = scene.join("m1")
    scene.join("m2")
    assert scene.joined(again).error is errors.NoError


def test_client_of_a_member_when_it_vanishes_and_stays_away_then_others_go_on(scene: Scene) -> None:
    scene.stable(2)
    scene.join("m1")
    scene.join("m2")
    waiting = scene.sync("m2")
    scene.group.abandon(waiting, scene.at)
    scene.sync("m1", {})
    scene.wait(SESSION - 1)
    scene.heartbeat("m1")
    scene.wait(2)
    assert scene.heartbeat("m2") is errors.UnknownMemberIdError
    assert scene.waits(waiting)
