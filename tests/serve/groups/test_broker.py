"""The same conversations with a real broker and with the endpoint: both say the same, to the error code."""

from __future__ import annotations

import re
import signal
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from kafka import errors
from kafka.protocol.admin import DeleteGroupsRequest, DescribeGroupsRequest, ListGroupsRequest
from kafka.protocol.consumer import HeartbeatRequest, OffsetDeleteRequest
from kafka.protocol.metadata import FindCoordinatorRequest

from broker.broker import KAFKA_3, Broker
from endpoints.endpoint_process import HOST, EndpointProcess
from endpoints.group_requests import capped, commit, fetch, heartbeat, join, leave, sync
from log.samples import batch, put_segment
from server.messages import frame, response_class

pytestmark = [pytest.mark.broker, pytest.mark.xdist_group("broker")]

SECONDS = 120
TOPIC = "coordinated"
_MEMBER_ID = re.compile(r".*-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_SIZE = struct.Struct(">i")


class Asked:
    """A request that was sent over a connection of its own."""

    def __init__(self, server: Server, request: Any) -> None:
        self._server, self._request = server, request
        self._socket = socket.create_connection(server.address, timeout=SECONDS)
        data = frame(request)
        self._socket.sendall(_SIZE.pack(len(data)) + data)

    def answer(self) -> Any:
        with self._socket as connection, closing(connection.makefile("rb")) as stream:
            (size,) = _SIZE.unpack(stream.read(_SIZE.size))
            response = response_class(self._request.API_KEY)
            answer = response.decode(stream.read(size), version=self._request.API_VERSION, header=True)
        self._server.note(answer)
        return answer


class Server:
    """Who is spoken with, and all that it answered; members are numbered as they appear."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.address = address
        self.answers: list[Any] = []
        self._members: dict[str, str] = {}

    def send(self, request: Any) -> Asked:
        return Asked(self, request)

    def ask(self, request: Any) -> Any:
        return self.send(request).answer()

    def wait_for_rebalance(self, member_id: str, generation: int, group: str) -> None:
        """Until the member is told that it is to join again: then another has."""
        request = heartbeat(member_id, generation, group=group)
        while not self.ask(request).error_code:
            self.answers.pop()

    def list_groups(self, group: str, version: int, states: list[str]) -> None:
        """Ask for all groups, and keep what is said of one."""
        request = ListGroupsRequest(version=capped(ListGroupsRequest, version), states_filter=states)
        answer = self.ask(request)
        self.answers.pop()
        self.note(next((each for each in answer.groups if each.group_id == group), answer))

    def note(self, answer: Any) -> None:
        self.answers.append((type(answer).__name__, answer.version, self._plain(answer.to_dict())))

    def _plain(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {key: self._plain(each) for key, each in value.items() if key != "throttle_time_ms"}
        if isinstance(value, list):
            return sorted((self._plain(each) for each in value), key=repr)
        if isinstance(value, str) and _MEMBER_ID.fullmatch(value):
            return self._members.setdefault(value, f"member {len(self._members) + 1}")
        return value


@pytest.fixture(scope="module")
def topic(broker_3: Broker, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The broker has the topic, and a folder that is returned has its logs."""
    broker_3.create_topic(TOPIC, 2)
    folder = tmp_path_factory.mktemp("logs")
    for partition in range(2):
        put_segment(folder / f"{TOPIC}-{partition}", 0, [batch(0)])
    wait_for_coordinator(broker_3)
    return folder


@pytest.fixture(scope="module")
def servers(broker_3: Broker, topic: Path) -> Iterator[Callable[[], tuple[Server, Server]]]:
    with EndpointProcess(topic) as endpoint:
        yield lambda: (Server((HOST, broker_3.port)), Server((endpoint.host, endpoint.port)))


def wait_for_coordinator(broker: Broker) -> None:
    """Until the broker has made the topic of committed offsets, and knows that there are none."""
    deadline = time.monotonic() + SECONDS
    while True:
        found = broker.request(FindCoordinatorRequest(key="g"), 3)
        if not found.error_code:
            missing = broker.request(HeartbeatRequest(group_id="g", generation_id=1, member_id="m"), 3)
            if missing.error_code == errors.UnknownMemberIdError.errno:
                return
        assert time.monotonic() < deadline, found
        time.sleep(0.05)


def live(server: Server, version: int) -> None:
    """A member joins, reads, commits and leaves."""
    group = f"life-{version}"
    joined = server.ask(join("", version, group))
    if version >= 4:
        joined = server.ask(join(joined.member_id, version, group))
    member_id = joined.member_id
    server.ask(sync(member_id, 1, {member_id: b"all"}, version, group))
    server.ask(sync(member_id, 1, {}, version, group))
    server.ask(heartbeat(member_id, 1, version, group))
    server.ask(commit({(TOPIC, 0): 1, (TOPIC, 1): 2}, member_id, 1, version, group))
    server.ask(fetch([(TOPIC, 1), ("nowhere", 0)], version, (group, "nobody")))
    if version >= 2:
        server.ask(fetch(None, version, (group,)))
    server.ask(
        DescribeGroupsRequest(
            version=min(5, version), groups=[group, "nobody"], include_authorized_operations=True
        )
    )
    server.list_groups(group, version, ["stable"])
    server.ask(DeleteGroupsRequest(version=min(2, version), groups_names=[group, "nobody"]))
    server.ask(leave(member_id, version, group=group))
    server.ask(leave(member_id, version, group=group))
    server.ask(DeleteGroupsRequest(version=min(2, version), groups_names=[group]))
    server.ask(fetch([(TOPIC, 1)], version, (group,)))


def make_mistakes(server: Server, version: int) -> None:
    """Requests of those who are nobody, of another generation, or of the wrong kind."""
    group = f"mistakes-{version}"
    for session_timeout_ms in (5_999, 1_800_001):
        server.ask(join("", version, group, session_timeout_ms=session_timeout_ms))
    server.ask(join("", version, ""))
    server.ask(join("never", version, group))
    server.ask(join("", version, group, protocol_type=""))
    server.ask(heartbeat("never", 1, version, group))
    server.ask(sync("never", 1, {}, version, group))
    server.ask(leave("never", version, group=group))
    member_id = server.ask(join("", min(3, version), group)).member_id
    server.ask(join("", version, group, protocol_type="connect"))
    server.ask(sync(member_id, 0, {}, version, group))
    server.ask(sync(member_id, 1, {}, 5, group, protocol_name="other"))
    server.ask(sync(member_id, 1, {}, 5, group, protocol_type=None))
    server.ask(commit({(TOPIC, 0): 1}, member_id, 1, version, group))
    server.ask(sync(member_id, 1, {}, version, group))
    for member, generation in ((member_id, 0), ("never", 1), ("", -1)):
        server.ask(heartbeat(member, generation, version, group))
        server.ask(commit({(TOPIC, 0): 1}, member, generation, version, group))
    too_large = commit({(TOPIC, 0): 1, (TOPIC, 1): 2, ("nowhere", 0): 3}, member_id, 1, version, group)
    too_large.topics[0].partitions[0].committed_metadata = "x" * 4097
    server.ask(too_large)
    server.ask(fetch([(TOPIC, 0), (TOPIC, 1)], version, (group,)))


def rebalance(server: Server, version: int) -> None:
    """A second member comes, metadata changes, a member goes."""
    group = f"rebalance-{version}"
    first = server.ask(join("", min(3, version), group)).member_id
    server.ask(sync(first, 1, {first: b"all"}, version, group))
    joining = server.send(join("", min(3, version), group))
    server.wait_for_rebalance(first, 1, group)
    server.ask(commit({(TOPIC, 0): 1}, first, 1, version, group))
    server.ask(sync(first, 1, {}, version, group))
    server.ask(join(first, version, group))
    second = joining.answer().member_id
    server.ask(commit({(TOPIC, 0): 2}, first, 2, version, group))
    waiting = server.send(sync(second, 2, {}, version, group))
    server.ask(sync(first, 2, {first: b"one", second: b"two"}, version, group))
    waiting.answer()
    server.ask(join(second, version, group))
    changing = server.send(join(second, version, group, metadata=b"other"))
    server.wait_for_rebalance(first, 2, group)
    server.ask(DescribeGroupsRequest(version=4, groups=[group]))
    server.ask(leave(first, version, group=group))
    changing.answer()


def be_static(server: Server, version: int) -> None:
    """A static member restarts, its former self is fenced, an administrator removes it."""
    group, me = f"static-{version}", {"group_instance_id": "i1"}
    first = server.ask(join("", version, group, **me)).member_id
    server.ask(sync(first, 1, {first: b"all"}, version, group, **me))
    second = server.ask(join("", version, group, **me)).member_id
    server.ask(join(first, version, group, **me))
    server.ask(heartbeat(first, 1, version, group, **me))
    server.ask(heartbeat(first, 1, version, group))
    server.ask(heartbeat(second, 1, version, group, group_instance_id="i2"))
    server.ask(sync(first, 1, {}, version, group, **me))
    server.ask(sync(second, 1, {}, version, group, **me))
    server.ask(commit({(TOPIC, 0): 1}, first, 1, max(7, version), group, "i1"))
    server.ask(commit({(TOPIC, 0): 1}, second, 1, max(7, version), group, "i1"))
    server.ask(DescribeGroupsRequest(version=4, groups=[group]))
    server.ask(leave(first, version, "i1", group))
    server.ask(leave("", version, "i2", group))
    server.ask(leave("", version, "i1", group))


def commit_alone(server: Server, version: int) -> None:
    """A consumer that picks its partitions by itself, and an administrator."""
    group = f"alone-{version}"
    server.ask(commit({(TOPIC, 0): 1, (TOPIC, 1): 2}, "", -1, version, group, committed_metadata=None))
    server.ask(fetch([(TOPIC, 0), (TOPIC, 1), (TOPIC, 2)], version, (group,)))
    server.ask(DescribeGroupsRequest(version=4, groups=[group]))
    server.list_groups(group, 4, ["EMPTY"])
    topic_class = OffsetDeleteRequest.OffsetDeleteRequestTopic
    partitions = [topic_class.OffsetDeleteRequestPartition(partition_index=0)]
    topics = [topic_class(name=TOPIC, partitions=partitions)]
    server.ask(OffsetDeleteRequest(version=0, group_id=group, topics=topics))
    member_id = server.ask(join("", 3, group)).member_id
    server.ask(commit({(TOPIC, 0): 3}, "", -1, version, group))
    server.ask(sync(member_id, 1, {}, 3, group))
    server.ask(OffsetDeleteRequest(version=0, group_id=group, topics=topics))
    server.ask(fetch([(TOPIC, 0), (TOPIC, 1)], version, (group,)))
    server.ask(leave(member_id, 3, group=group))
    server.ask(DeleteGroupsRequest(version=2, groups_names=[group]))
    server.ask(OffsetDeleteRequest(version=0, group_id="nobody", topics=topics))


# Version 0 of commits is for offsets in ZooKeeper, and 10 is newer than the broker.
@pytest.mark.parametrize(
    ("conversation", "version"),
    [
        *product((live, make_mistakes, rebalance, commit_alone), (1, 3, 5, 9)),
        *product((be_static,), (5, 9)),
    ],
)
def test_coordinator_when_spoken_with_then_says_what_a_broker_says(
    servers: Callable[[], tuple[Server, Server]], conversation: Callable[[Server, int], None], version: int
) -> None:
    broker, endpoint = servers()
    conversation(broker, version)
    conversation(endpoint, version)
    assert endpoint.answers == broker.answers
    assert len(broker.answers) > 10


STABLE, MIDWAY, STATIC = "stable when killed", "midway when killed", "static when killed"
LONG = {
    "session_timeout_ms": 60_000
}  # a broker takes its time to start, and sessions begin before it answers


def be_members(server: Server) -> dict[str, list[str]]:
    """Members of a stable group, of one that a rebalance is under way in, and of one with a static member."""
    members = {}
    for group in (STABLE, MIDWAY):
        first = server.ask(join("", group=group, **LONG)).member_id
        server.ask(sync(first, 1, {first: b"all"}, group=group))
        joining = server.send(join("", group=group, **LONG))
        server.wait_for_rebalance(first, 1, group)
        server.ask(join(first, group=group, **LONG))
        second = joining.answer().member_id
        members[group] = [first, second]
    first, second = members[STABLE]
    waiting = server.send(sync(second, 2, {}, group=STABLE))
    server.ask(sync(first, 2, {first: b"one", second: b"two"}, group=STABLE))
    waiting.answer()
    server.ask(commit({(TOPIC, 0): 1}, first, 2, group=STABLE))
    static = server.ask(join("", 5, STATIC, group_instance_id="i1", **LONG)).member_id
    server.ask(sync(static, 1, {static: b"all"}, 5, STATIC, group_instance_id="i1"))
    return {**members, STATIC: [static]}


def go_on(server: Server, members: dict[str, list[str]]) -> None:
    """What these members are told when their coordinator is another process."""
    for group in (STABLE, MIDWAY):
        for member_id in members[group]:
            server.ask(heartbeat(member_id, 2, group=group))
            server.ask(commit({(TOPIC, 0): 2, (TOPIC, 1): 3}, member_id, 2, group=group))
            server.ask(sync(member_id, 2, {}, group=group))
        server.ask(fetch([(TOPIC, 0), (TOPIC, 1)], 3, (group,)))
        server.ask(DescribeGroupsRequest(version=4, groups=[group]))
    first, second = members[STABLE]
    server.ask(join(second, group=STABLE))
    server.ask(leave(second, group=STABLE))
    server.ask(heartbeat(first, 2, group=STABLE))
    server.ask(join(first, group=STABLE))
    first, second = members[MIDWAY]
    server.ask(join(second, group=MIDWAY))
    server.ask(join(first, group=MIDWAY))
    [static] = members[STATIC]
    again = server.ask(join("", 5, STATIC, group_instance_id="i1", **LONG)).member_id
    server.ask(heartbeat(static, 1, 3, STATIC, group_instance_id="i1"))
    server.ask(sync(again, 1, {}, 5, STATIC, group_instance_id="i1"))
    server.ask(leave("", 5, "i1", STATIC))


@pytest.mark.full
def test_coordinator_when_killed_and_started_again_then_says_what_a_broker_says(
    topic: Path, tmp_path: Path
) -> None:
    state = ("--state", str(tmp_path / "state"))
    with Broker(tmp_path / "broker", kafka=KAFKA_3) as broker:
        broker.create_topic(TOPIC, 2)
        wait_for_coordinator(broker)
        real, ours = Server((HOST, broker.port)), Server((HOST, -1))
        members = [be_members(real)]
        with EndpointProcess(topic, *state) as endpoint:
            ours.address = HOST, endpoint.port
            members.append(be_members(ours))
            broker.kill()
            endpoint.send_signal(signal.SIGKILL)
            endpoint.wait()
        broker.start()
        wait_for_coordinator(broker)
        real.address = HOST, broker.port
        go_on(real, members[0])
    with EndpointProcess(topic, *state) as endpoint:
        ours.address = HOST, endpoint.port
        go_on(ours, members[1])
    assert ours.answers == real.answers
