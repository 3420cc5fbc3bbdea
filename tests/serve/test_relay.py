"""Requests passed on by a worker: answered elsewhere, in any order, and what becomes of them when a side is gone."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

import pytest
from kafka.protocol.consumer import HeartbeatRequest, HeartbeatResponse, JoinGroupRequest, JoinGroupResponse

from kafkafmt.serve.relay import Relay, RelayedRequests, RelayError
from kafkafmt.serve.request import Handler, Message, Request

HEARTBEAT, JOIN = HeartbeatRequest.API_KEY, JoinGroupRequest.API_KEY


class Coordinator:
    """Answers heartbeats at once, with what it was asked; joins once it is told to."""

    def __init__(self) -> None:
        self.joined, self.may_answer, self.withdrawn = asyncio.Event(), asyncio.Event(), asyncio.Event()

    def handlers(self) -> Mapping[int, Handler]:
        return {HEARTBEAT: self._heartbeat, JOIN: self._join}

    async def _heartbeat(self, request: Request) -> Message:
        if request.body.group_id == "faulty":
            raise ZeroDivisionError
        assert (request.client_id, request.client_host) == ("tëst", "::1")
        return HeartbeatResponse[request.version](error_code=request.body.generation_id)

    async def _join(self, request: Request) -> Message:
        self.joined.set()
        try:
            await self.may_answer.wait()
        except asyncio.CancelledError:
            self.withdrawn.set()
            raise
        member = JoinGroupResponse[request.version].JoinGroupResponseMember(
            member_id="m", metadata=b"\x00\xff"
        )
        return JoinGroupResponse[request.version](
            generation_id=7, leader="m", member_id="m", members=[member]
        )


@asynccontextmanager
async def relayed(coordinator: Coordinator) -> AsyncIterator[tuple[dict[int, Handler], asyncio.Task[None]]]:
    """Handlers of a worker whose requests are answered elsewhere, and the task that answers."""
    ours, theirs = socket.socketpair()
    relay = Relay(*await asyncio.open_unix_connection(sock=theirs))
    ready = asyncio.Event()
    requests = RelayedRequests(*await asyncio.open_unix_connection(sock=ours), coordinator.handlers(), ready)
    running, answering = asyncio.create_task(relay.run()), asyncio.create_task(requests.run())
    relay.announce()
    await ready.wait()
    try:
        yield relay.handlers([HEARTBEAT, JOIN]), answering
    finally:
        answering.cancel()
        await asyncio.wait({running, answering}, timeout=10)
        assert running.done()


def heartbeat(group_id: str, generation: int, version: int = 4) -> Request:
    body = HeartbeatRequest[version](group_id=group_id, generation_id=generation, member_id="m")
    return request(body)


def join(version: int = 5) -> Request:
    body = JoinGroupRequest[version](
        group_id="g", session_timeout_ms=1, member_id="", protocol_type="consumer", protocols=[]
    )
    return request(body)


def request(body: Any) -> Request:
    """As it is decoded from the wire."""
    decoded = type(body).decode(body.encode(), version=body.API_VERSION)
    return Request(body.API_KEY, body.API_VERSION, 3, "tëst", decoded, "::1")


@pytest.mark.parametrize("version", [0, 4])
def test_request_when_passed_on_then_its_response_comes_back(version: int) -> None:
    async def scenario() -> None:
        async with relayed(Coordinator()) as (handlers, _):
            response = await handlers[HEARTBEAT](heartbeat("g", 22, version))
            assert (response.API_VERSION, response.error_code) == (version, 22)

    asyncio.run(scenario())


def test_request_when_there_were_2_to_the_31_before_it_then_is_passed_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("itertools.count", lambda _: count(2**31))

    async def scenario() -> None:
        async with relayed(Coordinator()) as (handlers, _):
            assert (await handlers[HEARTBEAT](heartbeat("g", 1))).error_code == 1

    asyncio.run(scenario())


def test_response_when_it_takes_long_then_others_overtake_it() -> None:
    async def scenario() -> None:
        coordinator = Coordinator()
        async with relayed(coordinator) as (handlers, _):
            joining = asyncio.ensure_future(handlers[JOIN](join()))
            await coordinator.joined.wait()
            assert (await handlers[HEARTBEAT](heartbeat("g", 1))).error_code == 1
            assert not joining.done()
            coordinator.may_answer.set()
            response = await joining
            assert (response.generation_id, bytes(response.members[0].metadata)) == (7, b"\x00\xff")

    asyncio.run(scenario())


def test_request_when_cancelled_then_is_withdrawn_and_others_go_on() -> None:
    async def scenario() -> None:
        coordinator = Coordinator()
        async with relayed(coordinator) as (handlers, _):
            joining = asyncio.ensure_future(handlers[JOIN](join()))
            await coordinator.joined.wait()
            joining.cancel()
            await coordinator.withdrawn.wait()
            assert (await handlers[HEARTBEAT](heartbeat("g", 1))).error_code == 1

    asyncio.run(scenario())


def test_request_when_its_handler_fails_then_fails_here_and_others_go_on() -> None:
    async def scenario() -> None:
        async with relayed(Coordinator()) as (handlers, _):
            with pytest.raises(RelayError, match="could not be answered"):
                await handlers[HEARTBEAT](heartbeat("faulty", 1))
            assert (await handlers[HEARTBEAT](heartbeat("g", 1))).error_code == 1

    asyncio.run(scenario())


def test_requests_when_the_other_side_is_gone_then_fail_and_those_that_follow_too() -> None:
    async def scenario() -> None:
        coordinator = Coordinator()
        async with relayed(coordinator) as (handlers, answering):
            joining = asyncio.ensure_future(handlers[JOIN](join()))
            await coordinator.joined.wait()
            answering.cancel()
            with pytest.raises(RelayError, match="is gone"):
                await joining
            assert coordinator.withdrawn.is_set()
            with pytest.raises(RelayError, match="is gone"):
                await handlers[HEARTBEAT](heartbeat("g", 1))

    asyncio.run(scenario())
