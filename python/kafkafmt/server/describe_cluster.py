"""DescribeCluster: the one broker (KIP-700)."""

from __future__ import annotations

from kafka.errors import MismatchedEndpointTypeError
from kafka.protocol.admin import DescribeClusterResponse

from kafkafmt.server.node import Node
from kafkafmt.server.request import Message, Request

_BROKERS = 1


class DescribeClusterApi:
    """Answers DescribeCluster for brokers. Controllers cannot be described here (KIP-919)."""

    def __init__(self, node: Node) -> None:
        self._node = node

    async def answer(self, request: Request) -> Message:
        version, node = request.version, self._node
        endpoint_type = request.body.endpoint_type
        if version >= 1 and endpoint_type != _BROKERS:
            return DescribeClusterResponse(
                version=version,
                error_code=MismatchedEndpointTypeError.errno,
                error_message=f"endpoint type {endpoint_type}: this is a broker, of type {_BROKERS}",
                endpoint_type=_BROKERS,
                cluster_id=node.cluster_id,
            )
        return DescribeClusterResponse(
            version=version,
            endpoint_type=_BROKERS,
            cluster_id=node.cluster_id,
            controller_id=node.id,
            brokers=[
                DescribeClusterResponse.DescribeClusterBroker(
                    broker_id=node.id, host=node.host, port=node.port
                )
            ],
        )
