"""A gateway that drains while a request waits for the cluster: the request is answered, and no records are lost."""

from __future__ import annotations

import asyncio
import struct
from pathlib import Path

import pytest
from kafka.protocol.api_key import ApiKey

from endpoints.endpoint_here import HOST, SECONDS, connect, serving
from endpoints.fetched import ask, read
from endpoints.requests import Wanted, fetch
from gateway.gateway_here import gateway_to
from log.samples import batches, put_segment
from serve.produced import ALL, NONE, batch, produce

HEAD = struct.Struct(">ih")  # the size of a request, and its API
STORED = 3  # records of the topic before the test


class HoldingRelay:
    """Passes requests on to an endpoint, but the nth one of an API only after `release`.

    held: set when that request has come.
    """

    def __init__(self, endpoint: tuple[str, int], api_key: ApiKey, number: int) -> None:
        self.held, self.release = asyncio.Event(), asyncio.Event()
        self._endpoint, self._api_key, self._left = endpoint, api_key, number

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answers, requests = await asyncio.open_connection(*self._endpoint)
        answering = asyncio.create_task(self._pass_answers(answers, writer))
        try:
            while True:
                head = await reader.readexactly(HEAD.size)
                size, api_key = HEAD.unpack(head)
                rest = await reader.readexactly(4 + size - HEAD.size)
                if api_key == self._api_key:
                    self._left -= 1
                    if not self._left:
                        self.held.set()
                        await self.release.wait()
                requests.write(head + rest)
        except asyncio.IncompleteReadError:  # the gateway has closed the connection
            requests.close()
        await answering

    async def _pass_answers(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(2**16):
            writer.write(data)
        writer.close()


@pytest.mark.parametrize(
    ("api_key", "number"), [(ApiKey.ApiVersions, 1), (ApiKey.Metadata, 1), (ApiKey.Metadata, 2)]
)
@pytest.mark.parametrize("acks", [NONE, ALL])
@pytest.mark.parametrize("version", [2, 3], ids=["translated", "passed"])
def test_drain_when_a_produce_request_waits_for_the_cluster_then_its_records_arrive(
    tmp_path: Path, api_key: ApiKey, number: int, acks: int, version: int
) -> None:
    put_segment(tmp_path / "t-0", 0, batches(0, STORED))

    async def scenario() -> None:
        async with serving(tmp_path, allow_produce=True) as here:
            relay = HoldingRelay(here.endpoint.address, api_key, number)
            server = await asyncio.start_server(relay.serve, HOST, 0)
            request = produce(batch(1, magic=1 if version < 3 else 2), acks=acks)
            async with gateway_to(server.sockets[0].getsockname()[:2]) as (gateway, _):
                with await connect(gateway.address) as client:
                    await client.send(request, version)
                    await asyncio.wait_for(relay.held.wait(), SECONDS)
                    gateway.drain()
                    relay.release.set()
                    if acks == ALL:
                        (topic,) = (await client.answer(request, version)).responses
                        assert topic.partition_responses[0].error_code == 0
                    assert await client.is_closed()
            # The endpoint may not have read the request yet, which has no answer.
            found = await ask(here, fetch(Wanted("t", 0, STORED), max_wait_ms=10_000), 12)
            assert read(found["t", 0], STORED) == [STORED]
            server.close()
            await server.wait_closed()

    asyncio.run(scenario())
