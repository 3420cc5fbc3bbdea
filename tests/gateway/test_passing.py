"""Responses on their way to a client that reads slowly, or from a broker whose bytes are damaged."""

from __future__ import annotations

import asyncio
import socket

import pytest
from kafka import errors
from kafka.protocol.producer import ProduceRequest

from _kafkafmt.server.producing import decode_produce_request
from endpoints.raw_client import frame
from kafkafmt.gateway.cluster import ClusterView
from kafkafmt.gateway.errors import UpstreamError
from kafkafmt.gateway.leaders import forget_leaders
from kafkafmt.gateway.passing import MadeResponse, PassedResponses
from kafkafmt.gateway.split_produce import MergedProduce
from kafkafmt.server.stream import Stream

SECONDS = 60
RESPONSE = bytes(range(256)) * 2**16  # more than a socket holds
SIZE_BYTES = 4


def test_responses_when_the_client_has_not_read_the_last_one_then_they_are_busy() -> None:
    """Else the answer to the next request would be written into the middle of it."""

    async def run() -> None:
        ours, theirs = socket.socketpair()
        failures: list[Exception] = []
        with ours, theirs:
            responses = PassedResponses(Stream(ours), SECONDS, failures.append)
            response = MadeResponse(responses, RESPONSE)
            responses.expect(response)
            response.on_turn()
            assert responses.is_busy

            theirs.setblocking(False)
            loop, received = asyncio.get_running_loop(), b""
            while len(received) < len(RESPONSE):
                received += await loop.sock_recv(theirs, 2**20)
            await responses.wait_below(1)

            assert received == RESPONSE
            assert not responses.is_busy
            assert not failures

    asyncio.run(run())


def test_response_when_it_cannot_be_written_in_its_turn_then_the_connection_ends() -> None:
    """Its turn comes in a callback of the client's socket. An error there must not leave the client waiting."""

    class Broken:
        is_begun = False

        def on_turn(self) -> None:
            raise OverflowError("of bytes of a broker")

    async def run() -> None:
        ours, theirs = socket.socketpair()
        ended = asyncio.get_running_loop().create_future()
        with ours, theirs:
            responses = PassedResponses(Stream(ours), SECONDS, ended.set_result)
            first = MadeResponse(responses, RESPONSE)
            responses.expect(first)
            responses.expect(Broken())
            first.on_turn()
            theirs.setblocking(False)
            loop, received = asyncio.get_running_loop(), 0
            while received < len(RESPONSE):
                received += len(await loop.sock_recv(theirs, 2**20))
            error = await asyncio.wait_for(ended, SECONDS)
            responses.close()
        assert isinstance(error, UpstreamError)
        assert "of bytes of a broker" in str(error)

    asyncio.run(run())


def test_leaders_when_a_broker_names_a_topic_that_is_not_utf_8_then_none_is_forgotten() -> None:
    assert forget_leaders(
        ClusterView(), [(b"\xff", 0, errors.NotLeaderForPartitionError.errno)], are_ids=False
    )


@pytest.mark.parametrize("version", [3, 9, 13])
def test_produce_when_the_response_of_a_broker_is_damaged_then_the_merged_one_fails(version: int) -> None:
    class Responses:
        error: Exception | None = None

        def fail(self, error: Exception) -> None:
            self.error = error

    asked = decode_produce_request(frame(ProduceRequest(acks=-1, topic_data=[]), version, 1)[SIZE_BYTES:])
    assert asked is not None
    responses = Responses()
    merged = MergedProduce(responses, asked, 2, lambda _: None)  # type: ignore[arg-type]

    merged.take([], None, errors.KafkaConnectionError("gone"))
    merged.take([], memoryview(b"\0\0\0\1\0\0\0\x09"))

    assert isinstance(responses.error, UpstreamError)
