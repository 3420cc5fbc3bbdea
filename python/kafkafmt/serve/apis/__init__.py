"""The handlers of all APIs except those of fetching, producing, groups and security."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kafka.protocol.api_key import ApiKey

from kafkafmt.serve.apis.alter_configs import AlterConfigsApi
from kafkafmt.serve.apis.configs import DescribeConfigsApi
from kafkafmt.serve.apis.create_topics import CreateTopicsApi
from kafkafmt.serve.apis.leader_epochs import OffsetForLeaderEpochApi
from kafkafmt.serve.apis.list_offsets import ListOffsetsApi
from kafkafmt.serve.apis.metadata import MetadataApi
from kafkafmt.serve.apis.produce import refuse_produce
from kafkafmt.serve.options import ServeOptions
from kafkafmt.serve.topic_creation import TopicCreation
from kafkafmt.serve.topic_settings import TopicConfigs
from kafkafmt.server.api_versions import ApiVersionsApi
from kafkafmt.server.batch_work import BatchWork
from kafkafmt.server.describe_cluster import DescribeClusterApi
from kafkafmt.server.node import Node
from kafkafmt.server.request import Handler
from kafkafmt.server.wire import SUPPORTED

if TYPE_CHECKING:
    from kafkafmt.serve.catalog import Catalog


# APIs that are served only if the endpoint accepts records, or changes of configuration.
_WRITING = {ApiKey.CreateTopics, ApiKey.InitProducerId}
_ALTERING = {ApiKey.AlterConfigs, ApiKey.IncrementalAlterConfigs}


def served_apis(options: ServeOptions) -> dict[int, range]:
    """Return the APIs that an endpoint serves, and their versions."""
    left_out = set() if options.allow_produce else set(_WRITING)
    if not options.alters_configs:
        left_out |= _ALTERING
    return {key: versions for key, versions in SUPPORTED.items() if key not in left_out}


def handlers(
    catalog: Catalog,
    node: Node,
    options: ServeOptions,
    topics: TopicConfigs,
    work: BatchWork,
    creation: TopicCreation | None = None,
) -> dict[int, Handler]:
    """Return the handlers by API key. creation: creates topics; None: that is not allowed."""
    served = served_apis(options)
    found: dict[int, Handler] = {
        ApiKey.Produce: refuse_produce,
        ApiKey.ListOffsets: ListOffsetsApi(catalog, work).answer,
        ApiKey.Metadata: MetadataApi(catalog, node, creation if options.auto_create_topics else None).answer,
        ApiKey.ApiVersions: ApiVersionsApi(served).answer,
        ApiKey.OffsetForLeaderEpoch: OffsetForLeaderEpochApi(catalog).answer,
        ApiKey.DescribeConfigs: DescribeConfigsApi(catalog, node, options, topics).answer,
        ApiKey.DescribeCluster: DescribeClusterApi(node).answer,
    }
    if options.alters_configs:
        altering = AlterConfigsApi(catalog, topics)
        found |= dict.fromkeys(map(int, _ALTERING), altering.answer)
    if creation is not None:
        found[ApiKey.CreateTopics] = CreateTopicsApi(creation, node).answer
    return found
