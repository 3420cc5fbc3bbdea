"""Requests passed on by a worker: answered elsewhere, in any order, and what becomes of them when a side is gone."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

import pytest
from kafka.protocol.consumer import HeartbeatRequest, HeartbeatResponse, JoinGroupRequest, JoinGroupResponse

from endpoints.raw_client import SIZE
from kafkafmt.memory import MemoryBudget
from kafkafmt.server.errors import RequestError
from kafkafmt.server.metrics import Metrics
from kafkafmt.server.relay import Relay, RelayedRequests, RelayError, RelayMemory
from kafkafmt.server.request import Handler, Message, Request
from kafkafmt.server.request_memory import OWN_BYTES, RequestMemory

MIB = 1024 * 1024
SECONDS = 60
HEARTBEAT, JOIN = HeartbeatRequest.API_KEY, JoinGroupRequest.API_KEY


class Coordinator:
    """Answers heartbeats at once, with what it was asked; joins once it is told to.

    metadata: what joins are answered with.
    """

    def __init__(self, metadata: bytes = b"\x00\xff") -> None:
        self.metadata = metadata
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
            member_id="m", metadata=self.metadata
        )
        return JoinGroupResponse[request.version](
            generation_id=7, leader="m", member_id="m", members=[member]
        )


@asynccontextmanager
async def relayed(
    coordinator: Coordinator, memory: RelayMemory | None = None
) -> AsyncIterator[tuple[dict[int, Handler], asyncio.Task[None]]]:
    """Handlers of a worker whose requests are answered elsewhere, and the task that answers."""
    memory = relay_memory(MIB) if memory is None else memory
    ours, theirs = socket.socketpair()
    relay = Relay(*await asyncio.open_unix_connection(sock=theirs))
    ready = asyncio.Event()
    reader, writer = await asyncio.open_unix_connection(sock=ours)
    requests = RelayedRequests(reader, writer, coordinator.handlers(), ready, memory)
    running, answering = asyncio.create_task(relay.run()), asyncio.create_task(requests.run())
    relay.announce()
    await ready.wait()
    try:
        yield relay.handlers([HEARTBEAT, JOIN]), answering
    finally:
        answering.cancel()
        await asyncio.wait({running, answering}, timeout=SECONDS)
        assert running.done()


def relay_memory(size: int, **options: Any) -> RelayMemory:
    return RelayMemory(MemoryBudget(size, "relayed"), **options)


async def answered(handlers: Mapping[int, Handler], asked: Request) -> Any:
    """The response to a request as its client gets it, decoded."""
    header, version = asked.body, asked.version
    data = await handlers[asked.api_key](asked)
    header.with_header(3, None)
    response_class = header.header.get_response_class()
    assert SIZE.unpack_from(data)[0] == len(data) - SIZE.size
    response = response_class.decode(bytes(data[SIZE.size :]), version=version, header=True)
    assert response.header.correlation_id == 3
    return response


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
            response = await answered(handlers, heartbeat("g", 22, version))
            assert (response.API_VERSION, response.error_code) == (version, 22)

    asyncio.run(scenario())


def test_request_when_there_were_2_to_the_31_before_it_then_is_passed_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("itertools.count", lambda _: count(2**31))

    async def scenario() -> None:
        async with relayed(Coordinator()) as (handlers, _):
            assert (await answered(handlers, heartbeat("g", 1))).error_code == 1

    asyncio.run(scenario())


def test_response_when_it_takes_long_then_others_overtake_it() -> None:
    async def scenario() -> None:
        coordinator = Coordinator()
        async with relayed(coordinator) as (handlers, _):
            joining = asyncio.ensure_future(answered(handlers, join()))
            await coordinator.joined.wait()
            assert (await answered(handlers, heartbeat("g", 1))).error_code == 1
            assert not joining.done()
            coordinator.may_answer.set()
            response = await joining
            assert (response.generation_id, bytes(response.members[0].metadata)) == (7, b"\x00\xff")

    asyncio.run(scenario())


def test_request_when_cancelled_then_is_withdrawn_and_others_go_on() -> None:
    async def scenario() -> None:
        coordinator = Coordinator()
        async with relayed(coordinator) as (handlers, _):
            joining = asyncio.ensure_future(answered(handlers, join()))
            await coordinator.joined.wait()
            joining.cancel()
            await coordinator.withdrawn.wait()
            assert (await answered(handlers, heartbeat("g", 1))).error_code == 1

    asyncio.run(scenario())


def test_request_when_its_handler_fails_then_fails_here_and_others_go_on() -> None:
    async def scenario() -> None:
        async with relayed(Coordinator()) as (handlers, _):
            with pytest.raises(RelayError, match="could not be answered"):
                await answered(handlers, heartbeat("faulty", 1))
            assert (await answered(handlers, heartbeat("g", 1))).error_code == 1

    asyncio.run(scenario())


def test_requests_when_the_other_side_is_gone_then_fail_and_those_that_follow_too() -> None:
    async def scenario() -> None:
        coordinator = Coordinator()
        async with relayed(coordinator) as (handlers, answering):
            joining = asyncio.ensure_future(answered(handlers, join()))
            await coordinator.joined.wait()
            answering.cancel()
            with pytest.raises(RelayError, match="has ended"):
                await joining
            assert coordinator.withdrawn.is_set()
            with pytest.raises(RelayError, match="has ended"):
                await answered(handlers, heartbeat("g", 1))

    asyncio.run(scenario())


# Memory


async def counted(taken_bytes: int) -> Request:
    """A join that takes so much in its worker."""
    asked = join()
    asked.memory = RequestMemory(MemoryBudget(10 * MIB, "requests"), Metrics()).lease()
    await asked.memory.take(taken_bytes)
    return asked


async def until(holds: Callable[[], bool]) -> None:
    """Let others go on until something holds."""

    async def look() -> None:
        while not holds():
            await asyncio.sleep(0)

    await asyncio.wait_for(look(), SECONDS)


async def exhaust(handlers: Mapping[int, Handler]) -> list[Request]:
    """Two joins with large responses that nobody takes: the second one has gone beyond the budget."""
    requests = [join(), await counted(2 * OWN_BYTES)]
    for asked in requests:
        data = await handlers[JOIN](asked)
        assert asked.answer_memory is not None
        asked.answer_memory.keep(len(data))
    return requests


def test_request_when_it_is_passed_on_then_its_memory_is_held_by_the_other_side_alone() -> None:
    async def scenario() -> None:
        coordinator, memory = Coordinator(), relay_memory(MIB)
        async with relayed(coordinator, memory) as (handlers, _):
            asked = await counted(OWN_BYTES + 1000)
            joining = asyncio.ensure_future(handlers[JOIN](asked))
            await coordinator.joined.wait()
            assert asked.memory is not None
            assert (asked.memory.taken_bytes, asked.body) == (0, None)
            assert memory.budget.held_bytes == 1000
            joining.cancel()
            await coordinator.withdrawn.wait()
            await until(lambda: not memory.budget.held_bytes)

    asyncio.run(scenario())


def test_request_when_it_cannot_be_encoded_then_the_other_side_gives_its_memory_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def failing(_: Request) -> bytes:
        raise ZeroDivisionError

    monkeypatch.setattr("kafkafmt.server.relay.encode_request", failing)

    async def scenario() -> None:
        memory = relay_memory(MIB)
        async with relayed(Coordinator(), memory) as (handlers, _):
            with pytest.raises(ZeroDivisionError):
                await handlers[JOIN](await counted(OWN_BYTES + 1000))
            await until(lambda: not memory.budget.held_bytes)

    asyncio.run(scenario())


def test_response_when_its_client_has_not_taken_it_then_is_counted_and_wanted_by_those_that_wait() -> None:
    async def scenario() -> None:
        coordinator, memory = Coordinator(bytes(MIB)), relay_memory(MIB)
        coordinator.may_answer.set()
        async with relayed(coordinator, memory) as (handlers, _):
            unread = [asked.answer_memory for asked in await exhaust(handlers)]
            assert memory.budget.held_bytes == sum(answer.held for answer in unread if answer) > MIB
            assert not any(answer.is_wanted for answer in unread if answer)

            other = asyncio.ensure_future(handlers[JOIN](await counted(2 * OWN_BYTES)))
            await until(lambda: all(answer.is_wanted for answer in unread if answer))
            assert (await answered(handlers, heartbeat("g", 1))).error_code == 1, "small ones do not wait"
            assert not other.done()
            for answer in unread:
                if answer is not None:
                    answer.keep(0)
            assert len(await asyncio.wait_for(other, SECONDS)) > MIB

    asyncio.run(scenario())


def test_request_when_it_takes_more_than_there_is_then_is_refused_with_the_reason() -> None:
    async def scenario() -> None:
        async with relayed(Coordinator(), relay_memory(1000)) as (handlers, _):
            with pytest.raises(RequestError, match=f"expected at most {OWN_BYTES + 1000}"):
                await handlers[JOIN](await counted(OWN_BYTES + 1001))
            assert (await answered(handlers, heartbeat("g", 1))).error_code == 1

    asyncio.run(scenario())


def test_request_when_there_is_no_memory_in_time_then_is_refused_and_others_go_on() -> None:
    async def scenario() -> None:
        coordinator, memory = Coordinator(bytes(MIB)), relay_memory(MIB, seconds=0.05)
        coordinator.may_answer.set()
        async with relayed(coordinator, memory) as (handlers, _):
            await exhaust(handlers)
            with pytest.raises(RequestError, match="were not free within"):
                await handlers[JOIN](await counted(2 * OWN_BYTES))
            assert (await answered(handlers, heartbeat("g", 1))).error_code == 1

    asyncio.run(scenario())
