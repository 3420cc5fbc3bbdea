"""Produce of old versions for as many partitions as a request may have: other clients have their turn meanwhile."""

from __future__ import annotations

import asyncio

import pytest
from kafka.protocol.producer import ProduceResponse

from _kafkafmt.server.producing import decode_produce_request
from gateway.test_bad_requests import OLD, produce
from kafkafmt.gateway import producing

SIZE_BYTES = 4


class Responses:
    """The responses of a client, of which this one is the next, unless the client has gone."""

    def __init__(self) -> None:
        self.written = b""
        self.is_gone = False
        self.error: Exception | None = None
        self.ended = asyncio.Event()

    def is_next(self, _: object) -> bool:
        return not self.is_gone

    def write(self, _: object, data: memoryview) -> None:
        self.written += data

    def end(self) -> None:
        self.ended.set()

    def fail(self, error: Exception) -> None:
        self.error = error
        self.ended.set()


def answers_for(partitions: int, responses: Responses) -> producing._ProduceAnswers:
    request = decode_produce_request(produce(OLD, b"t", topics=partitions))
    assert request is not None
    answers = producing._ProduceAnswers(responses, request)  # type: ignore[arg-type]
    answers.unanswered = 1
    return answers


@pytest.mark.parametrize(("partitions", "is_made_at_once"), [(1000, True), (1001, False)])
def test_answers_when_they_are_many_then_are_encoded_beside_the_loop(
    partitions: int, is_made_at_once: bool
) -> None:
    async def scenario() -> None:
        responses = Responses()
        answers_for(partitions, responses).take([])
        assert bool(responses.written) is is_made_at_once
        await asyncio.wait_for(responses.ended.wait(), 60)
        decoded = ProduceResponse.decode(responses.written[SIZE_BYTES:], version=OLD, header=True)
        assert len(decoded.responses) == partitions

    asyncio.run(scenario())


def test_answers_when_the_client_has_gone_meanwhile_then_are_not_written() -> None:
    async def scenario() -> None:
        responses = Responses()
        answers = answers_for(1001, responses)
        answers.take([])
        responses.is_gone = True
        assert answers._making is not None
        await answers._making
        assert (responses.written, responses.error) == (b"", None)

    asyncio.run(scenario())


def test_answers_when_they_cannot_be_encoded_then_the_responses_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> bytearray:
        raise ValueError("no response")

    async def scenario() -> None:
        responses = Responses()
        monkeypatch.setattr(producing, "encode_response", fail)
        answers_for(1001, responses).take([])
        await asyncio.wait_for(responses.ended.wait(), 60)
        assert str(responses.error) == "no response"

    asyncio.run(scenario())
