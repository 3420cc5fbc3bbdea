"""Requests for the controller of a cluster with ZooKeeper, whose brokers do not pass them on.

Stand-ins take the place of the brokers: those of the other tests have no ZooKeeper.
"""

from __future__ import annotations

import socketserver
import struct
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from kafka.protocol.admin import CreateTopicsRequest, CreateTopicsResponse
from kafka.protocol.api_key import ApiKey
from kafka.protocol.metadata import ApiVersionsResponse, MetadataResponse

from endpoints.endpoint_process import HOST, gateway_process
from endpoints.raw_client import RawClient
from endpoints.requests import metadata
from kafkafmt.server.wire import encode_response

HEAD = struct.Struct(">ihhi")  # the size of a request, its API, version and correlation id
NO_ERROR, NOT_CONTROLLER = 0, 41
TAKEN = {ApiKey.ApiVersions: (0, 3), ApiKey.Metadata: (0, 4), ApiKey.CreateTopics: (2, 5)}


class Cluster:
    """Two brokers. controller: the node of the one that is the controller now."""

    def __init__(self) -> None:
        self.controller = 1
        self.ports: dict[int, int] = {}

    def answer(self, node: int, api_key: int, version: int) -> Any:
        match ApiKey(api_key):
            case ApiKey.ApiVersions:
                spec = ApiVersionsResponse.ApiVersion
                taken = [
                    spec(api_key=key, min_version=low, max_version=high) for key, (low, high) in TAKEN.items()
                ]
                return ApiVersionsResponse(version=version, api_keys=taken)
            case ApiKey.Metadata:
                broker = MetadataResponse.MetadataResponseBroker
                return MetadataResponse(
                    version=version,
                    brokers=[
                        broker(node_id=one, host=HOST, port=port, rack=None)
                        for one, port in self.ports.items()
                    ],
                    controller_id=self.controller,
                    topics=[],
                )
            case _:
                code = NO_ERROR if node == self.controller else NOT_CONTROLLER
                created = CreateTopicsResponse.CreatableTopicResult(name="t", error_code=code)
                return CreateTopicsResponse(version=version, topics=[created])

    def broker(self, node: int) -> type[socketserver.StreamRequestHandler]:
        cluster = self

        class Connection(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                while head := self.rfile.read(HEAD.size):
                    size, api_key, version, correlation_id = HEAD.unpack(head)
                    self.rfile.read(size + 4 - HEAD.size)
                    answer = cluster.answer(node, api_key, version)
                    self.wfile.write(encode_response(correlation_id, answer))

        return Connection


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    cluster = Cluster()
    with ExitStack() as stack:
        for node in (1, 2):
            server = stack.enter_context(socketserver.ThreadingTCPServer((HOST, 0), cluster.broker(node)))
            server.daemon_threads = True
            threading.Thread(target=server.serve_forever, daemon=True).start()
            stack.callback(server.shutdown)
            cluster.ports[node] = server.server_address[1]
        yield cluster


@pytest.mark.slow
@pytest.mark.parametrize("version", [0, 5], ids=["translated", "passed"])
def test_controller_when_it_has_moved_then_the_second_request_reaches_the_new_one(
    cluster: Cluster, version: int
) -> None:
    topic = CreateTopicsRequest.CreatableTopic(
        name="t", num_partitions=1, replication_factor=1, assignments=[], configs=[]
    )
    request = CreateTopicsRequest(topics=[topic], timeout_ms=1000, validate_only=False)
    bootstrap = ",".join(f"{HOST}:{port}" for port in cluster.ports.values())
    with gateway_process(bootstrap) as gateway, RawClient((gateway.host, gateway.port)) as client:
        client.ask(metadata([]), 1)
        codes = []
        for controller in (1, 2, 2, 1, 1):
            cluster.controller = controller
            codes.append(client.ask(request, version).topics[0].error_code)
    assert codes == [NO_ERROR, NOT_CONTROLLER, NO_ERROR, NOT_CONTROLLER, NO_ERROR]
