"""Clients that close their connection while the coordinator has not answered them yet: nobody waits for them."""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kafka import errors
from kafka.protocol.admin import DescribeGroupsRequest

from endpoints.group_requests import heartbeat, join, sync
from endpoints.raw_client import SECONDS, RawClient
from endpoints.served import Served
from kafkafmt.server.options import TlsOptions
from server.security.certificates import make_certificates

VERSION = 3
Connect = Callable[[], RawClient]


@pytest.fixture(params=["plain", "tls"])
def connect(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Connect]:
    """Makes clients of an endpoint."""
    (tmp_path / "logs").mkdir()
    if request.param == "plain":
        with Served(tmp_path / "logs") as served:
            yield lambda: RawClient(served.address)
        return
    certificates = make_certificates(tmp_path)
    context = ssl.create_default_context(cafile=certificates.server_ca)

    def secured() -> RawClient:
        client = RawClient(served.address)
        client.socket = context.wrap_socket(client.socket, server_hostname=served.address[0])
        return client

    with Served(tmp_path / "logs", tls=TlsOptions(certificates.server, certificates.server_key)) as served:
        yield secured


def lead(client: RawClient) -> str:
    """The id of a member that has all of the group `g`, whose generation is 1."""
    member_id: str = client.ask(join(), VERSION).member_id
    assert client.ask(sync(member_id, 1, {}), VERSION).error_code == 0
    return member_id


def wait_for_rebalance(client: RawClient, member_id: str) -> None:
    while client.ask(heartbeat(member_id, 1), VERSION).error_code != errors.RebalanceInProgressError.errno:
        pass


def members(client: RawClient) -> list[str]:
    [group] = client.ask(DescribeGroupsRequest(groups=["g"]), VERSION).groups
    return [member.member_id for member in group.members]


def test_member_when_it_goes_while_it_waits_for_others_then_they_do_not_have_it(connect: Connect) -> None:
    with connect() as stays:
        first = lead(stays)
        with connect() as goes:
            goes.send(join(), VERSION)
            wait_for_rebalance(stays, first)
        deadline = time.monotonic() + SECONDS
        while members(stays) != [first]:
            assert time.monotonic() < deadline
        joined = stays.ask(join(first), VERSION)
        assert [member.member_id for member in joined.members] == [first]


def test_member_when_it_sends_more_while_it_waits_then_all_is_answered_in_turn(connect: Connect) -> None:
    with connect() as first_client, connect() as second_client:
        first = lead(first_client)
        requests = [join(), *(heartbeat("nobody", number) for number in range(2000))]
        sent = [(request, second_client.send(request, VERSION)) for request in requests]
        wait_for_rebalance(first_client, first)
        first_client.socket.settimeout(0.3)  # longer than a connection goes unwatched
        with pytest.raises(TimeoutError):
            first_client.socket.recv(1)
        first_client.socket.settimeout(SECONDS)
        first_client.send(join(first), VERSION)
        answers = [second_client.receive(request, VERSION, number) for request, number in sent]
        assert answers[0].generation_id == 2
        assert {answer.error_code for answer in answers[1:]} == {errors.UnknownMemberIdError.errno}
