"""Topics of a broker's folder, which its cluster's metadata describes: a mirror makes them as they were."""

from __future__ import annotations

import shutil
from pathlib import Path
from uuid import UUID

import pytest

from broker.broker import Broker
from internal_topics.metadata_logs import framed, put_metadata
from kafkafmt._util.uuids import uuid_text
from kafkafmt.log.directory_topics import read_directory_topics
from kafkafmt.log.partition_metadata import write_topic_id
from kafkafmt.log.topic_configs import TopicConfig, read_topic_configs, set_topic_config
from kafkafmt.schemas import Message
from kafkafmt.schemas.metadata import ConfigRecord, PartitionRecord, TopicRecord
from mirror.folders import KEPT, batches, mirror, put_log

pytestmark = pytest.mark.slow

ID = UUID(int=7)
CONFIGS = {"retention.ms": "86400000", "cleanup.policy": "compact,delete"}


def put_source(directory: Path, partitions: int = 5) -> Path:
    """A directory with the first partition of a topic, and metadata that knows all."""
    put_log(directory / "t-0", batches(0, 50))
    records: list[Message | bytes] = [TopicRecord("t", ID)]
    records += [ConfigRecord(2, "t", name, value) for name, value in CONFIGS.items()]
    records += [framed(PartitionRecord(number, ID, (1,), (1,), leader=1)) for number in range(partitions)]
    put_metadata(directory / "__cluster_metadata-0", records)
    return directory


def test_topic_when_the_metadata_has_it_then_gets_its_partitions_configuration_and_id(tmp_path: Path) -> None:
    source, target = put_source(tmp_path / "source"), tmp_path / "target"
    ended = mirror(source, target)
    assert ended.status == 0
    assert "configuration" not in ended.errors
    assert read_topic_configs(target) == {"t": TopicConfig(5, CONFIGS)}
    assert uuid_text(ID) in (target / "t-0" / "partition.metadata").read_text()


def test_topic_when_topics_ini_has_it_too_then_its_section_is_used(tmp_path: Path) -> None:
    source, target = put_source(tmp_path / "source"), tmp_path / "target"
    set_topic_config(source, "t", TopicConfig(None, {"retention.ms": "1000"}))
    assert mirror(source, target).status == 0
    assert read_topic_configs(target) == {"t": TopicConfig(5, {"retention.ms": "1000"})}
    set_topic_config(source, "t", TopicConfig(2, {}))
    assert read_directory_topics(source).topics["t"].config == TopicConfig(2, {})


def test_topic_when_the_metadata_has_a_later_one_of_its_name_then_is_made_to_lose_nothing(
    tmp_path: Path,
) -> None:
    source, target = put_source(tmp_path / "source"), tmp_path / "target"
    write_topic_id(source / "t-0", UUID(int=8))
    assert mirror(source, target).status == 0
    assert read_topic_configs(target) == {"t": TopicConfig(1, KEPT)}


def test_topic_when_the_metadata_is_damaged_then_is_made_to_lose_nothing_and_it_is_said(
    tmp_path: Path,
) -> None:
    source, target = put_source(tmp_path / "source"), tmp_path / "target"
    log = source / "__cluster_metadata-0" / f"{0:020}.log"
    data = bytearray(log.read_bytes())
    data[80] ^= 1
    log.write_bytes(data)
    ended = mirror(source, target)
    assert ended.status == 0
    assert "the metadata of the cluster is not used" in ended.errors
    assert read_topic_configs(target) == {"t": TopicConfig(1, KEPT)}


@pytest.mark.broker
@pytest.mark.full
def test_broker_folder_when_mirrored_to_another_cluster_then_its_topics_have_all_partitions_and_configuration(
    broker: Broker, broker_3: Broker, tmp_path: Path
) -> None:
    topic = "restored-from-metadata"
    broker.create_topic(topic, 7, {"retention.ms": "98765432", "max.message.bytes": "54321"})
    source = tmp_path / "source"
    shutil.copytree(broker.log_dir / "__cluster_metadata-0", source / "__cluster_metadata-0")
    for number in range(3):  # the others are on other brokers
        put_log(source / f"{topic}-{number}", batches(0, 20))
    ended = mirror(source, f"kafka://{broker_3.bootstrap}")
    assert ended.status == 0
    described = _described(broker_3, topic)
    assert described == (7, {"retention.ms": "98765432", "max.message.bytes": "54321"})


def _described(broker: Broker, topic: str) -> tuple[int, dict[str, str]]:
    from kafka import KafkaAdminClient
    from kafka.admin import ConfigResource, ConfigResourceType

    with KafkaAdminClient(bootstrap_servers=broker.bootstrap) as admin:
        (found,) = admin.describe_topics([topic])
        resource = ConfigResource(ConfigResourceType.TOPIC, topic)
        configs = admin.describe_configs([resource], config_filter="modified")["topic"][topic]
    return len(found["partitions"]), {name: one["value"] for name, one in configs.items()}
