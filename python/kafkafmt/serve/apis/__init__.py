"""The APIs that tell what there is: everything but fetching, groups and security."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kafka.protocol.api_key import ApiKey

from kafkafmt.serve.apis.api_versions import answer_api_versions
from kafkafmt.serve.apis.cluster import DescribeClusterApi
from kafkafmt.serve.apis.configs import DescribeConfigsApi
from kafkafmt.serve.apis.leader_epochs import OffsetForLeaderEpochApi
from kafkafmt.serve.apis.list_offsets import ListOffsetsApi
from kafkafmt.serve.apis.metadata import MetadataApi
from kafkafmt.serve.apis.produce import refuse_produce
from kafkafmt.serve.node import Node
from kafkafmt.serve.options import ServeOptions
from kafkafmt.serve.request import Handler

if TYPE_CHECKING:
    from kafkafmt.serve.catalog import Catalog


def handlers(catalog: Catalog, node: Node, options: ServeOptions) -> dict[int, Handler]:
    """Handlers by API key."""
    return {
        ApiKey.Produce: refuse_produce,
        ApiKey.ListOffsets: ListOffsetsApi(catalog).answer,
        ApiKey.Metadata: MetadataApi(catalog, node).answer,
        ApiKey.ApiVersions: answer_api_versions,
        ApiKey.OffsetForLeaderEpoch: OffsetForLeaderEpochApi(catalog).answer,
        ApiKey.DescribeConfigs: DescribeConfigsApi(catalog, node, options).answer,
        ApiKey.DescribeCluster: DescribeClusterApi(node).answer,
    }
