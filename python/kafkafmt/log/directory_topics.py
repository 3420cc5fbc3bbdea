"""The topics of a log directory: their configuration, numbers of partitions and ids.

They are in two places. `topics.ini` is a file of this project, which users and a mirror write. `__cluster_metadata` is
the log of a KRaft cluster, which a broker's directory has. For each topic, its section of `topics.ini` overrides the
configuration in the metadata as a whole. If the section has no `partitions`, their number is that of the metadata.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from uuid import UUID

from kafkafmt.errors import KafkaFormatError
from kafkafmt.log.topic_configs import TopicConfig, read_topic_configs
from kafkafmt.log.topics import METADATA_LOG
from kafkafmt.storage import RemotePath, StoragePath, storage_path

if TYPE_CHECKING:
    from kafkafmt.log.internal_topics.metadata.cluster import ClusterMetadata


@dataclass(frozen=True)
class DirectoryTopic:
    """A topic of a log directory. topic_id: by the cluster's metadata; None if that does not have the topic.

    is_from_file: its configuration is that of `topics.ini`.
    """

    config: TopicConfig
    topic_id: UUID | None = None
    is_from_file: bool = False


@dataclass(frozen=True)
class DirectoryTopics:
    """The topics of a log directory, by name. warnings: why the metadata is incomplete, or cannot be read."""

    topics: Mapping[str, DirectoryTopic]
    warnings: Sequence[str] = ()


def read_directory_topics(directory: str | os.PathLike[str] | RemotePath) -> DirectoryTopics:
    """Read the topics of a log directory. Metadata that cannot be read is a warning, and counts as missing.

    Raises IniError for a malformed `topics.ini`, and OSError for one that cannot be read.
    """
    metadata, warnings = _metadata(storage_path(directory))
    topics = {} if metadata is None else _topics_of(metadata)
    for name, config in read_topic_configs(directory).items():
        known = topics.get(name)
        if known is not None and config.partitions is None:
            config = replace(config, partitions=known.config.partitions)
        topic_id = None if known is None else known.topic_id
        topics[name] = DirectoryTopic(config, topic_id, is_from_file=True)
    return DirectoryTopics(topics, warnings)


def _metadata(directory: StoragePath) -> tuple[ClusterMetadata | None, Sequence[str]]:
    """Return the metadata in a log directory, if it can be read, and warnings."""
    folder = directory / str(METADATA_LOG)
    try:
        if not folder.is_dir():
            return None, ()
        from kafkafmt.log.internal_topics.metadata.reader import cluster_metadata  # takes 80 ms

        found = cluster_metadata(folder)
    except (KafkaFormatError, OSError) as error:
        return None, [f"{error}; the metadata of the cluster is not used"]
    return found, found.warnings


def _topics_of(metadata: ClusterMetadata) -> dict[str, DirectoryTopic]:
    configs: dict[str, dict[str, str]] = {}
    for one in metadata.configs:
        if one.resource_type == "topic" and one.value is not None:
            configs.setdefault(one.resource_name, {})[one.name] = one.value
    return {
        topic.name: DirectoryTopic(
            TopicConfig(len(topic.partitions), configs.get(topic.name, {})), topic.topic_id
        )
        for topic in metadata.topics
    }
