"""Groups over the wire: every API at every version, and what clients of any age rely on."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from kafka import errors
from kafka.protocol.admin import DeleteGroupsRequest, DescribeGroupsRequest, ListGroupsRequest
from kafka.protocol.consumer import (
    HeartbeatRequest,
    LeaveGroupRequest,
    OffsetCommitRequest,
    OffsetDeleteRequest,
)
from kafka.protocol.metadata import FindCoordinatorRequest

from endpoints.group_requests import (
    SUBSCRIPTION,
    capped,
    codes,
    commit,
    fetch,
    fetched,
    heartbeat,
    join,
    leave,
    sync,
)
from kafkafmt.serve.groups.offsets import CommittedOffset, OffsetCommit
from kafkafmt.serve.options import GroupOptions
from kafkafmt.server.wire import SUPPORTED
from kafkafmt.types import TopicPartition
from serve.groups.served import NODE, Served, run
from server.messages import filled, request_class
from server.yielding import answer_yielding

MANY = 50_000  # partitions, groups or members


async def stable(served: Served, members: int = 1, version: int = 3) -> list[str]:
    """The ids of the members of a stable group `g`, of generation `members`."""
    ids: list[str] = []
    for generation in range(1, members + 1):
        joining = served.asking(join("", version))
        rejoining = [served.asking(join(member_id, version)) for member_id in ids]
        answers = await asyncio.gather(joining, *rejoining)
        assert {answer.generation_id for answer in answers} == {generation}
        ids.append(answers[0].member_id)
        assignments = {member_id: member_id.encode() for member_id in ids}
        synced = await asyncio.gather(
            *(served.ask(sync(member_id, generation, assignments, version)) for member_id in ids)
        )
        assert [answer.error_code for answer in synced] == [0] * len(ids)
    return ids


# Every API at every version


@pytest.mark.parametrize("version", range(OffsetCommitRequest.max_version + 1))
def test_life_of_a_group_when_spoken_at_any_version_then_the_same(tmp_path: Path, version: int) -> None:
    async def scenario(served: Served) -> None:
        topic_id = served.catalog.topic("orders").id  # type: ignore[union-attr]
        topic = topic_id if version >= 10 else "orders"

        find = FindCoordinatorRequest(
            version=capped(FindCoordinatorRequest, version), key="g", coordinator_keys=["g", "h"]
        )
        found = await served.ask(find)
        for each in found.coordinators if find.version >= 4 else [found]:
            assert (each.error_code, each.node_id) == (0, NODE.id)
            assert (each.host, each.port) == (NODE.host, NODE.port)

        joined = await served.ask(join("", version))
        if version >= 4:
            assert (joined.error_code, joined.generation_id) == (errors.MemberIdRequiredError.errno, -1)
            joined = await served.ask(join(joined.member_id, version))
        member_id = joined.member_id
        assert (joined.error_code, joined.generation_id, joined.protocol_name) == (0, 1, "range")
        assert joined.leader == member_id
        assert member_id.startswith("a client-")
        assert [(each.member_id, each.metadata) for each in joined.members] == [(member_id, SUBSCRIPTION)]
        assert joined.protocol_type == ("consumer" if version >= 7 else None)

        synced = await served.ask(sync(member_id, 1, {member_id: b"all"}, version))
        assert (synced.error_code, synced.assignment) == (0, b"all")
        assert (await served.ask(heartbeat(member_id, 1, version))).error_code == 0

        committed = await served.ask(commit({(topic, 1): 42}, member_id, 1, version))
        assert codes(committed) == [0]
        partition = fetched(await served.ask(fetch([(topic, 1)], version)))[topic, 1]
        assert (partition.committed_offset, partition.metadata, partition.error_code) == (42, "a note", 0)
        assert partition.committed_leader_epoch == (4 if version >= 6 else -1)

        describe = DescribeGroupsRequest(
            version=capped(DescribeGroupsRequest, version), groups=["g"], include_authorized_operations=True
        )
        [group] = (await served.ask(describe)).groups
        assert (group.error_code, group.group_state, group.protocol_data) == (0, "Stable", "range")
        [member] = group.members
        assert (member.member_id, member.client_id, member.client_host) == (
            member_id,
            "a client",
            "/192.0.2.1",
        )
        assert (member.member_metadata, member.member_assignment) == (SUBSCRIPTION, b"all")
        assert group.authorized_operations == ({3, 6, 8} if version >= 3 else None)

        listing = ListGroupsRequest(
            version=capped(ListGroupsRequest, version), states_filter=[], types_filter=[]
        )
        [listed] = (await served.ask(listing)).groups
        assert (listed.group_id, listed.protocol_type) == ("g", "consumer")
        assert listed.group_state == ("Stable" if version >= 4 else "")
        assert listed.group_type == ("classic" if version >= 5 else "")

        delete = DeleteGroupsRequest(version=capped(DeleteGroupsRequest, version), groups_names=["g"])
        [refused] = (await served.ask(delete)).results
        assert refused.error_code == errors.NonEmptyGroupError.errno
        left = await served.ask(leave(member_id, version))
        assert [left.error_code, *(each.error_code for each in left.members)] == [0] * (1 + (version >= 3))
        [deleted] = (await served.ask(delete)).results
        assert deleted.error_code == 0
        assert (await served.ask(listing)).groups == []

    run(scenario, tmp_path)


def test_requests_when_nothing_in_them_makes_sense_then_answered(tmp_path: Path) -> None:
    async def scenario(served: Served) -> None:
        for api_key in served.coordinator.handlers():
            for version in SUPPORTED[api_key]:
                answer = await served.ask(filled(request_class(api_key), version))
                assert answer.version == version

    run(scenario, tmp_path)


# Joining


def test_static_member_when_it_comes_back_then_needs_no_new_assignment(tmp_path: Path) -> None:
    async def scenario(served: Served) -> None:
        first = await served.ask(join("", 9, group_instance_id="i1"))
        await served.ask(sync(first.member_id, 1, {first.member_id: b"all"}, 5))
        again = await served.ask(join("", 9, group_instance_id="i1"))
        assert (again.generation_id, again.leader, again.skip_assignment) == (1, again.member_id, True)
        fenced = await served.ask(
            HeartbeatRequest(
                version=4, group_id="g", generation_id=1, member_id=first.member_id, group_instance_id="i1"
            )
        )
        assert fenced.error_code == errors.FencedInstanceIdError.errno

    run(scenario, tmp_path)


@pytest.mark.parametrize("session_timeout_ms", [49, 1_800_001, -1])
def test_join_when_the_session_timeout_is_out_of_bounds_then_refused(
    tmp_path: Path, session_timeout_ms: int
) -> None:
    async def scenario(served: Served) -> None:
        refused = await served.ask(join(session_timeout_ms=session_timeout_ms))
        assert refused.error_code == errors.InvalidSessionTimeoutError.errno

    run(scenario, tmp_path)


def test_requests_when_the_group_has_no_name_then_refused(tmp_path: Path) -> None:
    async def scenario(served: Served) -> None:
        requests = [join(group=""), sync("m", 1, {}), heartbeat("m", 1), leave("m")]
        requests.append(OffsetDeleteRequest(version=0, topics=[]))
        for request in requests:
            request.group_id = ""
            assert (await served.ask(request)).error_code == errors.InvalidGroupIdError.errno

    run(scenario, tmp_path)


def test_sync_when_it_does_not_say_its_protocol_then_refused_from_version_5_on(tmp_path: Path) -> None:
    async def scenario(served: Served) -> None:
        [member_id] = await stable(served)
        for version, code in ((4, 0), (5, errors.InconsistentGroupProtocolError.errno)):
            request = sync(member_id, 1, {}, version)
            request.protocol_type = None
            assert (await served.ask(request)).error_code == code

    run(scenario, tmp_path)


def test_members_when_one_vanishes_then_the_others_go_on_without_it(tmp_path: Path) -> None:
    async def scenario(served: Served) -> None:
        [first] = await stable(served)
        vanished = served.asking(join())
        while (await served.ask(heartbeat(first, 1))).error_code == 0:
            await asyncio.sleep(0)
        vanished.cancel()
        await asyncio.wait([vanished])
        joined = await served.ask(join(first))
        assert [each.member_id for each in joined.members] == [first]

    run(scenario, tmp_path)


def test_members_when_one_is_not_heard_of_then_the_others_go_on_without_it(tmp_path: Path) -> None:
    async def scenario(served: Served) -> None:
        silent = await served.ask(join(session_timeout_ms=100))
        joined = await asyncio.wait_for(served.ask(join()), 30)
        assert joined.leader == joined.member_id
        assert (
            await served.ask(heartbeat(silent.member_id, 1))
        ).error_code == errors.UnknownMemberIdError.errno

    run(scenario, tmp_path)


def test_member_that_waits_when_the_coordinator_closes_then_looks_for_it_again(tmp_path: Path) -> None:
    async def scenario(served: Served) -> None:
        [first] = await stable(served)
        waiting = served.asking(join())
        while (await served.ask(heartbeat(first, 1))).error_code == 0:
            await asyncio.sleep(0)
        served.coordinator.close()
        for response in (await waiting, await served.ask(join()), await served.ask(heartbeat(first, 1))):
            assert response.error_code == errors.CoordinatorNotAvailableError.errno

    run(scenario, tmp_path)


def test_members_when_memory_is_full_then_new_ones_are_refused_and_others_stay(tmp_path: Path) -> None:
    async def scenario(served: Served) -> None:
        large = {"metadata": bytes(60_000)}
        first = await served.ask(join(**large))
        refused = await served.ask(join(group="other", **large))
        assert refused.error_code == errors.GroupMaxSizeReachedError.errno
        again = await served.ask(join(first.member_id, **large))
        assert (again.error_code, again.generation_id) == (0, 1)
        assignment = await served.ask(sync(first.member_id, 1, {first.member_id: bytes(60_000)}))
        assert assignment.error_code == errors.CoordinatorNotAvailableError.errno
        await served.ask(leave(first.member_id))
        assert (await served.ask(join(group="other", **large))).error_code == 0

    run(scenario, tmp_path, options=GroupOptions(max_membership_bytes=100_000))


# Members whose coordinator started again


def test_members_when_the_coordinator_starts_again_then_go_on_without_a_rebalance(tmp_path: Path) -> None:
    members: list[str] = []

    async def before(served: Served) -> None:
        members.extend(await stable(served, 2))

    async def after(served: Served) -> None:
        first, second = members
        for member_id in members:
            assert (await served.ask(heartbeat(member_id, 2))).error_code == 0
            assert codes(await served.ask(commit({("orders", 0): 4}, member_id, 2))) == [0]
            assert (await served.ask(sync(member_id, 2, {}))).assignment == member_id.encode()
        [group] = (await served.ask(DescribeGroupsRequest(version=5, groups=["g"]))).groups
        assert (group.group_state, group.protocol_type, group.protocol_data) == (
            "Stable",
            "consumer",
            "range",
        )
        assert [(each.member_id, each.client_id, each.client_host) for each in group.members] == [
            (member_id, "a client", "/192.0.2.1") for member_id in members
        ]
        await served.ask(leave(second))
        joined = await served.ask(join(first))
        assert (joined.generation_id, joined.leader) == (3, first)

    run(before, tmp_path / "logs", state=tmp_path / "state")
    run(after, tmp_path / "logs", state=tmp_path / "state")


def test_members_when_they_were_gone_before_the_coordinator_starts_again_then_unknown(tmp_path: Path) -> None:
    members: list[str] = []

    async def before(served: Served) -> None:
        [member_id] = await stable(served)
        members.append(member_id)
        await served.ask(leave(member_id))
        await served.ask(commit({("orders", 0): 5}, group="other"))  # behind which the group is forgotten

    async def after(served: Served) -> None:
        unknown = errors.UnknownMemberIdError.errno
        [member_id] = members
        assert (await served.ask(heartbeat(member_id, 1))).error_code == unknown
        assert (await served.ask(join(member_id))).error_code == unknown
        assert codes(await served.ask(commit({("orders", 0): 4}, member_id, 1))) == [unknown]
        assert [await stable(served)] != []

    run(before, tmp_path / "logs", state=tmp_path / "state")
    run(after, tmp_path / "logs", state=tmp_path / "state")


def test_members_when_they_do_not_outlive_their_coordinator_then_expire(tmp_path: Path) -> None:
    generations: list[int] = []

    async def before(served: Served) -> None:
        synced = None
        while synced is None or synced.error_code:  # again, where its session was over by then
            joined = await served.ask(join(session_timeout_ms=100))
            generations.append(joined.generation_id)
            synced = await served.ask(sync(joined.member_id, joined.generation_id, {}))

    async def after(served: Served) -> None:
        joined = await asyncio.wait_for(served.ask(join()), 30)
        assert [each.member_id for each in joined.members] == [joined.member_id]
        assert joined.generation_id == generations[-1] + 1

    run(before, tmp_path / "logs", state=tmp_path / "state")
    run(after, tmp_path / "logs", state=tmp_path / "state")


def test_members_when_there_is_no_room_for_those_of_before_then_these_are_unknown(tmp_path: Path) -> None:
    members: dict[str, str] = {}

    async def before(served: Served) -> None:
        for group in ("g", "h"):
            joined = await served.ask(join(group=group, metadata=bytes(60_000)))
            await served.ask(sync(joined.member_id, 1, {}, group=group))
            members[group] = joined.member_id

    async def after(served: Served) -> None:
        assert (await served.ask(heartbeat(members["g"], 1))).error_code == 0
        unknown = errors.UnknownMemberIdError.errno
        assert (await served.ask(heartbeat(members["h"], 1, group="h"))).error_code == unknown
        full = await served.ask(join(group="h", metadata=bytes(60_000)))
        assert full.error_code == errors.GroupMaxSizeReachedError.errno

    run(before, tmp_path / "logs", state=tmp_path / "state")
    few = GroupOptions(max_membership_bytes=100_000)
    run(after, tmp_path / "logs", state=tmp_path / "state", options=few)


async def fill_with_offsets(served: Served) -> None:
    note = {"committed_metadata": "x" * 4000}
    number = 0
    while codes(await served.ask(commit({("orders", number): 5}, group="other", **note))) == [0]:
        number += 1


def test_members_when_there_is_no_more_room_for_offsets_then_their_generation_is_kept(tmp_path: Path) -> None:
    async def scenario(served: Served) -> None:
        await fill_with_offsets(served)
        joined = await served.ask(join(metadata=bytes(60_000)))
        assert (await served.ask(sync(joined.member_id, 1, {}))).error_code == 0

    options = GroupOptions(max_offsets_bytes=100_000, max_membership_bytes=100_000)
    run(scenario, tmp_path / "logs", state=tmp_path / "state", options=options)


def test_members_when_their_generation_cannot_be_kept_then_told_and_others_go_on(tmp_path: Path) -> None:
    async def scenario(served: Served) -> None:
        await fill_with_offsets(served)
        served.store._file._pragma("max_page_count = 1")  # as on a full disk: the file cannot grow
        large = await served.ask(join(metadata=bytes(60_000)))
        refused = await served.ask(sync(large.member_id, 1, {}))
        assert refused.error_code == errors.CoordinatorNotAvailableError.errno
        rebalance = errors.RebalanceInProgressError.errno
        assert (await served.ask(heartbeat(large.member_id, 1))).error_code == rebalance
        await served.ask(DeleteGroupsRequest(version=0, groups_names=["other"]))
        joined = await served.ask(join(large.member_id, metadata=bytes(60_000)))
        assert joined.generation_id == 2
        assert (await served.ask(sync(large.member_id, 2, {}))).error_code == 0

    options = GroupOptions(max_offsets_bytes=100_000, max_membership_bytes=100_000)
    run(scenario, tmp_path / "logs", state=tmp_path / "state", options=options)


# Offsets


def test_offsets_when_the_coordinator_starts_again_then_kept(tmp_path: Path) -> None:
    async def before(served: Served) -> None:
        await served.ask(commit({("orders", 0): 5, ("views", 1): 6}))

    async def after(served: Served) -> None:
        offsets = fetched(await served.ask(fetch(None)))
        assert {key: each.committed_offset for key, each in offsets.items()} == {
            ("orders", 0): 5,
            ("views", 1): 6,
        }

    run(before, tmp_path / "logs", state=tmp_path / "state")
    run(after, tmp_path / "logs", state=tmp_path / "state")


@pytest.mark.parametrize(
    ("version", "code"), [(0, errors.UnknownTopicOrPartitionError.errno), (1, 0), (7, 0)]
)
def test_offset_when_nothing_was_committed_then_none_and_of_old_an_error(
    tmp_path: Path, version: int, code: int
) -> None:
    async def scenario(served: Served) -> None:
        partition = fetched(await served.ask(fetch([("orders", 0)], version)))["orders", 0]
        assert (partition.committed_offset, partition.metadata, partition.error_code) == (-1, "", code)

    run(scenario, tmp_path)


def test_offsets_when_of_several_groups_then_each_group_once(tmp_path: Path) -> None:
    async def scenario(served: Served) -> None:
        for number, group in enumerate(("g", "h")):
            await served.ask(commit({("orders", 0): number}, group=group))
        response = await served.ask(fetch(None, 8, ("g", "h", "g", "none")))
        found = {
            group.group_id: [each.committed_offset for topic in group.topics for each in topic.partitions]
            for group in response.groups
        }
        assert found == {"g": [0], "h": [1], "none": []}
        assert len(response.groups) == 3

    run(scenario, tmp_path)


def test_offsets_when_asked_for_again_and_again_then_answered_once(tmp_path: Path) -> None:
    async def scenario(served: Served) -> None:
        await served.ask(commit({("orders", 0): 5}, committed_metadata="x" * 4096))
        request = fetch([("orders", 0)] * 1000)
        request.topics *= 10
        response = await served.ask(request)
        assert len(response.topics) == 1
        assert len(response.topics[0].partitions) == 1

    run(scenario, tmp_path)


def delete_offsets(partitions: Mapping[str, Iterable[int]]) -> Any:
    topic = OffsetDeleteRequest.OffsetDeleteRequestTopic
    return OffsetDeleteRequest(
        version=0,
        group_id="g",
        topics=[
            topic(
                name=name,
                partitions=[topic.OffsetDeleteRequestPartition(partition_index=number) for number in numbers],
            )
            for name, numbers in partitions.items()
        ],
    )


@pytest.mark.full
@pytest.mark.parametrize(
    "request_",
    [
        fetch(None),
        ListGroupsRequest(version=0),
        delete_offsets({"nothing": range(MANY)}),
        delete_offsets({f"nothing-{number}": [0] for number in range(MANY)}),
        commit({("nothing", number): 5 for number in range(MANY)}),
        LeaveGroupRequest(
            version=3,
            group_id="g",
            members=[
                LeaveGroupRequest.MemberIdentity(version=3, member_id=f"m{number}", group_instance_id=None)
                for number in range(MANY)
            ],
        ),
    ],
    ids=lambda request: type(request).__name__,
)
def test_response_when_it_is_large_then_others_have_their_turn(tmp_path: Path, request_: Any) -> None:
    async def scenario(served: Served) -> None:
        committed = CommittedOffset(5, -1, "", 1)
        await served.store.commit(
            OffsetCommit(group, TopicPartition("orders", number), committed)
            for number in range(MANY)
            for group in ("g", f"g{number}")
        )
        assert len(await answer_yielding(served.coordinator.handlers(), request_)) > MANY

    run(scenario, tmp_path)


def test_offsets_when_topics_are_named_by_id_then_unknown_ones_are_errors(tmp_path: Path) -> None:
    async def scenario(served: Served) -> None:
        orders, unknown = served.catalog.topic("orders").id, UUID(int=9)  # type: ignore[union-attr]
        committed = await served.ask(commit({(orders, 0): 5, (unknown, 0): 6}, version=10))
        assert codes(committed) == [0, errors.UnknownTopicIdError.errno]
        partitions = fetched(await served.ask(fetch([(orders, 0), (unknown, 0)], 10)))
        assert partitions[orders, 0].committed_offset == 5
        assert partitions[unknown, 0].error_code == errors.UnknownTopicIdError.errno
        assert list(fetched(await served.ask(fetch(None, 10)))) == [(orders, 0)]

    run(scenario, tmp_path)


def test_commit_when_some_of_it_cannot_be_kept_then_the_rest_is(tmp_path: Path) -> None:
    async def scenario(served: Served) -> None:
        request = commit({("orders", 0): 5, ("nowhere", 0): 6, ("orders", 1): 7})
        request.topics[0].partitions[1].committed_metadata = "x" * 4097
        too_large, unknown = (
            errors.OffsetMetadataTooLargeError.errno,
            errors.UnknownTopicOrPartitionError.errno,
        )
        assert codes(await served.ask(request)) == [0, too_large, unknown]
        assert list(fetched(await served.ask(fetch(None)))) == [("orders", 0)]

    run(scenario, tmp_path)


def test_commit_when_it_says_its_time_then_that_is_kept(tmp_path: Path) -> None:
    async def scenario(served: Served) -> None:
        await served.ask(
            commit({("orders", 0): 5}, version=1, commit_timestamp=1234, committed_metadata=None)
        )
        [offset] = (await served.store.offsets("g", None)).values()
        assert (offset.commit_timestamp_ms, offset.metadata) == (1234, "")

    run(scenario, tmp_path)


def test_commit_of_a_simple_consumer_when_the_group_has_members_then_refused(tmp_path: Path) -> None:
    async def scenario(served: Served) -> None:
        assert codes(await served.ask(commit({("orders", 0): 5}))) == [0]
        await stable(served)
        assert codes(await served.ask(commit({("orders", 0): 6}))) == [errors.UnknownMemberIdError.errno]

    run(scenario, tmp_path)


def test_offsets_when_there_is_no_more_room_then_refused_and_what_is_there_stays(tmp_path: Path) -> None:
    async def scenario(served: Served) -> None:
        committed = 0
        note = {"committed_metadata": "x" * 4000}
        while codes(await served.ask(commit({("orders", committed): 5}, **note))) == [0]:
            committed += 1
        assert 0 < committed < 100
        refused = await served.ask(commit({("orders", committed): 5}, **note))
        assert codes(refused) == [errors.CoordinatorNotAvailableError.errno]
        assert len(fetched(await served.ask(fetch(None)))) == committed
        await served.ask(DeleteGroupsRequest(version=0, groups_names=["g"]))
        assert codes(await served.ask(commit({("orders", 0): 6}, **note))) == [0]

    run(scenario, tmp_path, options=GroupOptions(max_offsets_bytes=100_000))


def test_offsets_when_a_member_reads_the_topic_then_not_deleted(tmp_path: Path) -> None:
    async def scenario(served: Served) -> None:
        await served.ask(commit({("orders", 0): 5, ("views", 0): 6}))
        topic_class = OffsetDeleteRequest.OffsetDeleteRequestTopic
        partition = topic_class.OffsetDeleteRequestPartition(partition_index=0)
        topics = [topic_class(name=name, partitions=[partition]) for name in ("orders", "views")]
        delete = OffsetDeleteRequest(version=0, group_id="g", topics=topics)
        [member_id] = await stable(served)
        assert codes(await served.ask(delete)) == [errors.GroupSubscribedToTopicError.errno, 0]
        assert list(fetched(await served.ask(fetch(None)))) == [("orders", 0)]
        await served.ask(leave(member_id))
        assert codes(await served.ask(delete)) == [0, 0]
        assert fetched(await served.ask(fetch(None))) == {}
        assert (await served.ask(delete)).error_code == errors.GroupIdNotFoundError.errno

    run(scenario, tmp_path)


@pytest.mark.parametrize(
    ("protocol_type", "metadata", "code", "topics"),
    [
        ("connect", SUBSCRIPTION, errors.NonEmptyGroupError.errno, []),
        ("consumer", b"\0\0\0", 0, [errors.GroupSubscribedToTopicError.errno]),
    ],
)
def test_offsets_when_it_cannot_be_told_what_members_read_then_not_deleted(
    tmp_path: Path, protocol_type: str, metadata: bytes, code: int, topics: list[int]
) -> None:
    async def scenario(served: Served) -> None:
        await served.ask(commit({("orders", 0): 5}))
        await served.ask(join(protocol_type=protocol_type, metadata=metadata))
        topic_class = OffsetDeleteRequest.OffsetDeleteRequestTopic
        partition = topic_class.OffsetDeleteRequestPartition(partition_index=0)
        topic = topic_class(name="orders", partitions=[partition])
        response = await served.ask(OffsetDeleteRequest(version=0, group_id="g", topics=[topic]))
        assert (response.error_code, codes(response)) == (code, topics)
        assert len(fetched(await served.ask(fetch(None)))) == 1

    run(scenario, tmp_path)


# Administration


@pytest.mark.parametrize(
    ("key_type", "code"),
    [(1, errors.TransactionalIdAuthorizationFailedError.errno), (2, errors.InvalidRequestError.errno)],
)
def test_coordinator_when_not_of_a_group_then_there_is_none(tmp_path: Path, key_type: int, code: int) -> None:
    async def scenario(served: Served) -> None:
        for version in (1, 6):
            request = FindCoordinatorRequest(
                version=version, key="t", key_type=key_type, coordinator_keys=["t"]
            )
            found = await served.ask(request)
            for each in found.coordinators if version >= 4 else [found]:
                assert (each.error_code, each.node_id, each.port) == (code, -1, -1)
                assert "\n" not in each.error_message

    run(scenario, tmp_path)


def test_groups_when_described_then_what_is_not_there_is_dead(tmp_path: Path) -> None:
    async def scenario(served: Served) -> None:
        await served.ask(commit({("orders", 0): 5}, group="simple"))
        names = ["simple", "none", "simple"]
        for version, code in ((5, 0), (6, errors.GroupIdNotFoundError.errno)):
            groups = (await served.ask(DescribeGroupsRequest(version=version, groups=names))).groups
            found = [(each.group_id, each.group_state, each.error_code) for each in groups]
            assert found == [("simple", "Empty", 0), ("none", "Dead", code)]
            assert {each.authorized_operations for each in groups} == {None}

    run(scenario, tmp_path)


@pytest.mark.parametrize(
    ("states", "types", "groups"),
    [
        ([], [], ["g", "simple"]),
        (["sTABLE"], [], ["g"]),
        (["Empty", "Dead"], ["Classic"], ["simple"]),
        ([], ["consumer"], []),
    ],
)
def test_groups_when_listed_then_by_state_and_type(
    tmp_path: Path, states: list[str], types: list[str], groups: list[str]
) -> None:
    async def scenario(served: Served) -> None:
        await served.ask(commit({("orders", 0): 5}, group="simple"))
        await stable(served)
        listed = await served.ask(ListGroupsRequest(version=5, states_filter=states, types_filter=types))
        assert [each.group_id for each in listed.groups] == groups

    run(scenario, tmp_path)


def test_groups_when_deleted_then_only_those_that_are_there(tmp_path: Path) -> None:
    async def scenario(served: Served) -> None:
        pending = await served.ask(join("", 4, group="pending"))
        request = DeleteGroupsRequest(version=2, groups_names=["none", "pending"])
        results = (await served.ask(request)).results
        assert [each.error_code for each in results] == [errors.GroupIdNotFoundError.errno, 0]
        again = await served.ask(join(pending.member_id, 4, group="pending"))
        assert again.error_code == errors.UnknownMemberIdError.errno

    run(scenario, tmp_path)


def test_groups_when_many_are_deleted_then_their_offsets_go_in_one_transaction(tmp_path: Path) -> None:
    async def scenario(served: Served) -> None:
        names = [f"simple-{number}" for number in range(20)]
        for name in names:
            await served.ask(commit({("orders", 0): 5}, group=name))
        await stable(served)
        statements: list[str] = []
        served.store._file._connection.set_trace_callback(statements.append)
        response = await served.ask(DeleteGroupsRequest(version=2, groups_names=[*names, "g", "none"]))
        served.store._file._connection.set_trace_callback(None)
        assert [each.error_code for each in response.results] == [
            *[0] * 20,
            errors.NonEmptyGroupError.errno,
            errors.GroupIdNotFoundError.errno,
        ]
        assert statements.count("COMMIT") == 1
        assert await served.store.group_ids() == []

    run(scenario, tmp_path)


def test_members_when_several_leave_then_each_is_told(tmp_path: Path) -> None:
    async def scenario(served: Served) -> None:
        first, second = await stable(served, 2)
        request = leave(first)
        request.members.append(LeaveGroupRequest.MemberIdentity(member_id="m9", group_instance_id=None))
        left = await served.ask(request)
        found = [(each.member_id, each.error_code) for each in left.members]
        assert found == [(first, 0), ("m9", errors.UnknownMemberIdError.errno)]
        rebalance = errors.RebalanceInProgressError.errno
        assert (await served.ask(heartbeat(second, 2))).error_code == rebalance

    run(scenario, tmp_path)
