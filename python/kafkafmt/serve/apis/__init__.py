"""The APIs that tell what there is: everything but fetching, groups and security."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kafka.protocol.api_key import ApiKey

from kafkafmt.serve.apis.api_versions import ApiVersionsApi
from kafkafmt.serve.apis.cluster import DescribeClusterApi
from kafkafmt.serve.apis.configs import DescribeConfigsApi
from kafkafmt.serve.apis.create_topics import CreateTopicsApi
from kafkafmt.serve.apis.leader_epochs import OffsetForLeaderEpochApi
from kafkafmt.serve.apis.list_offsets import ListOffsetsApi
from kafkafmt.serve.apis.metadata import MetadataApi
from kafkafmt.serve.apis.produce import refuse_produce
from kafkafmt.serve.batch_work import BatchWork
from kafkafmt.serve.node import Node
from kafkafmt.serve.options import ServeOptions
from kafkafmt.serve.request import Handler
from kafkafmt.serve.topic_creation import TopicCreation
from kafkafmt.serve.topic_settings import TopicConfigs
from kafkafmt.serve.wire import served_apis

if TYPE_CHECKING:
    from kafkafmt.serve.catalog import Catalog


def handlers(
    catalog: Catalog,
    node: Node,
    options: ServeOptions,
    topics: TopicConfigs,
    work: BatchWork,
    creation: TopicCreation | None = None,
) -> dict[int, Handler]:
    """Handlers by API key; `creation`: who makes topics, where that is allowed."""
    served = served_apis(allow_produce=options.allow_produce)
    found: dict[int, Handler] = {
        ApiKey.Produce: refuse_produce,
        ApiKey.ListOffsets: ListOffsetsApi(catalog, work).answer,
        ApiKey.Metadata: MetadataApi(catalog, node, creation if options.auto_create_topics else None).answer,
        ApiKey.ApiVersions: ApiVersionsApi(served).answer,
        ApiKey.OffsetForLeaderEpoch: OffsetForLeaderEpochApi(catalog).answer,
        ApiKey.DescribeConfigs: DescribeConfigsApi(catalog, node, options, topics).answer,
        ApiKey.DescribeCluster: DescribeClusterApi(node).answer,
    }
    if creation is not None:
        found[ApiKey.CreateTopics] = CreateTopicsApi(creation, node).answer
    return found
