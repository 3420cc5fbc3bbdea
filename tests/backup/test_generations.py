"""Generations of a backup of a real broker: what they have, and how they continue."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote, urlencode

import pytest
from confluent_kafka import Producer, TopicPartition
from kafka import KafkaAdminClient
from kafka import TopicPartition as KafkaTopicPartition

from backup.backing_up import back_up, bytes_of, generation, leftovers, topic_of
from broker.coordinators import make_streams_group
from client.cluster import Cluster
from file_systems import BUCKET
from kafkafmt.backup.repository import Repository
from kafkafmt.log import PartitionLog
from kafkafmt.mirror.addresses import ClusterAddress
from kafkafmt.mirror.clusters import MirrorCluster
from kafkafmt.storage import StoragePath, storage_path
from kafkafmt.types import TopicPartition as Partition
from mirror.reading import log_of
from mirror.running import KAFKAFMT, wait_until
from restore.restoring import YEAR_2020_MS

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.xdist_group("backup")]


def send(cluster: Cluster, topic: str, count: int, partition: int = 0) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "linger.ms": 1, "batch.num.messages": 20})
    failed: list[object] = []
    for number in range(count):
        value, key = b"value-%d" % number * 10, b"key-%d" % number
        producer.produce(
            topic, value, key, partition=partition, on_delivery=lambda error, _: failed.append(error)
        )
    assert producer.flush(60) == 0
    assert not any(failed), failed[-1]


def backed_up(target: StoragePath, topic: str, number: int = -1) -> bytes:
    """The log of the only partition of a topic in a generation: the last one, or by its place."""
    (partition,) = topic_of(generation(target, number), topic).partitions
    return bytes_of(target, partition)


def test_backup_when_it_has_a_range_of_time_then_has_its_records_and_the_next_one_continues_there(
    cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    cluster.create_topic(topic, 1)
    times = [YEAR_2020_MS + number for number in range(100)]
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "batch.num.messages": 20})
    for time in times:
        producer.produce(topic, str(time), partition=0, timestamp=time)
    assert producer.flush(60) == 0
    options = ("--from", times[7], "--to", times[53])
    for end, expected in ((options, times[7:53]), ((), times[7:])):
        outcome = back_up(cluster, tmp_path / "backup", topic, *end)
        assert outcome.status == 0, outcome.errors
        log = PartitionLog(storage_path(f"backup+file://{tmp_path}/backup") / f"{topic}-0")
        assert [record.timestamp for record in log.records()] == expected


def test_backup_when_the_topics_have_grown_then_the_next_generation_adds_only_what_is_new(
    cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    target, empty = tmp_path / "backup", f"{topic}-empty"
    cluster.create_topic(topic, 2, {"retention.ms": "-1"})
    cluster.create_topic(empty, 3)
    send(cluster, topic, 300)
    first = back_up(cluster, target, f"{topic}*", "--segment-bytes", "2k")
    assert first.status == 0, first.errors
    assert first.summary["records"] == 300, (first.errors, first.summary)
    before = generation(target)
    send(cluster, topic, 50)
    send(cluster, topic, 20, partition=1)
    second = back_up(cluster, target, f"{topic}*")
    assert (second.status, second.summary["records"]) == (0, 70), second.errors
    manifest = generation(target)
    assert (manifest.number, manifest.parent) == (2, before.name)
    found = topic_of(manifest, topic)
    assert (found.partition_count, found.configs) == (2, {"retention.ms": "-1"})
    assert found.topic_id == str(cluster.topic_id(topic))
    for partition in found.partitions:
        assert bytes_of(target, partition) == log_of(cluster.broker.log_dir, topic, partition.partition)
    assert [one.next_offset for one in found.partitions] == [350, 20]
    earlier = topic_of(before, topic).partitions[0].segments
    assert len(earlier) > 1
    assert found.partitions[0].segments[: len(earlier)] == earlier
    assert topic_of(manifest, empty).partition_count == 3
    assert not leftovers(target)


def test_backup_when_groups_have_committed_then_their_offsets_are_in_the_generation(
    cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    from confluent_kafka import Consumer

    cluster.create_topic(topic)
    send(cluster, topic, 30)
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": f"{topic}-group"})
    consumer.commit(offsets=[TopicPartition(topic, 0, 17, metadata="here")], asynchronous=False)
    consumer.close()
    assert back_up(cluster, tmp_path / "backup", topic).status == 0
    manifest = generation(tmp_path / "backup")
    (committed,) = manifest.groups[f"{topic}-group"]
    assert (committed.topic, committed.partition, committed.offset) == (topic, 0, 17)
    assert committed.metadata.startswith("here")  # librdkafka adds a zero byte
    assert 0 < manifest.groups_at_ms <= manifest.created_ms


def test_streams_group_when_it_has_committed_then_is_backed_up_and_a_group_of_its_offsets_becomes_one(
    cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    cluster.create_topic(topic)
    send(cluster, topic, 30)
    group, restored = f"{topic}-group", f"{topic}-restored"
    make_streams_group(cluster.bootstrap, group, topic)
    offsets = {Partition(topic, 0): 17}
    clients = MirrorCluster(ClusterAddress((cluster.bootstrap,)), {})
    clients.commit_group_offsets(group, offsets)
    assert back_up(cluster, tmp_path / "backup", topic).status == 0
    (committed,) = generation(tmp_path / "backup").groups[group]
    assert (committed.topic, committed.partition, committed.offset) == (topic, 0, 17)
    clients.commit_group_offsets(restored, offsets)
    make_streams_group(cluster.bootstrap, restored, topic)
    assert clients.group_offsets(restored) == offsets
    clients.close()


def test_backup_when_a_transaction_is_open_then_the_generation_names_it_and_the_next_one_its_end(
    cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    target = tmp_path / "backup"
    cluster.create_topic(topic)
    send(cluster, topic, 5)
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "transactional.id": topic})
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce(topic, b"open", partition=0)
    producer.flush()
    assert back_up(cluster, target, topic).status == 0
    (opened,) = generation(target).open_transactions
    assert (opened.topic, opened.partition, opened.first_offset) == (topic, 0, 5)
    producer.abort_transaction()
    assert back_up(cluster, target, topic).status == 0
    manifest = generation(target)
    assert manifest.open_transactions == ()
    (partition,) = topic_of(manifest, topic).partitions
    assert ".txnindex" in partition.segments[-1].files
    assert backed_up(target, topic) == log_of(cluster.broker.log_dir, topic, 0)


def test_backup_when_a_topic_was_created_again_then_it_begins_anew_and_the_earlier_generation_keeps_the_old(
    cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    target = tmp_path / "backup"
    cluster.create_topic(topic)
    send(cluster, topic, 40)
    assert back_up(cluster, target, topic).status == 0
    old = log_of(cluster.broker.log_dir, topic, 0)
    cluster.delete_topic(topic)
    cluster.create_topic(topic)
    send(cluster, topic, 70)
    outcome = back_up(cluster, target, topic)
    assert (outcome.status, outcome.summary["records"]) == (0, 70), outcome.errors
    assert "created again" in outcome.errors
    assert backed_up(target, topic, 0) == old
    assert backed_up(target, topic) == log_of(cluster.broker.log_dir, topic, 0)


def test_backup_when_records_were_deleted_at_the_source_then_the_next_generation_begins_after_them(
    cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    target = tmp_path / "backup"
    cluster.create_topic(topic)
    send(cluster, topic, 200)
    assert back_up(cluster, target, topic, "--segment-bytes", "2k").status == 0
    admin = KafkaAdminClient(bootstrap_servers=cluster.bootstrap)
    admin.delete_records({KafkaTopicPartition(topic, 0): 120})
    admin.close()
    assert back_up(cluster, target, topic).status == 0
    (before,) = topic_of(generation(target, 0), topic).partitions
    (after,) = topic_of(generation(target), topic).partitions
    assert (after.start_offset, after.next_offset) == (120, 200)
    assert after.segments[0].next_offset > 120
    assert after.segments == before.segments[-len(after.segments) :]
    assert len(after.segments) < len(before.segments)


def test_backup_when_a_log_was_truncated_then_it_begins_anew_and_the_earlier_generation_keeps_the_old(
    cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    """The broker has lost the folder of the partition, as a disk that was replaced."""
    target = tmp_path / "backup"
    cluster.create_topic(topic)
    send(cluster, topic, 60)
    assert back_up(cluster, target, topic).status == 0
    old = log_of(cluster.broker.log_dir, topic, 0)
    cluster.kill()
    shutil.rmtree(cluster.broker.log_dir / f"{topic}-0")
    cluster.start()
    send(cluster, topic, 25)
    outcome = back_up(cluster, target, topic)
    assert (outcome.status, outcome.summary["records"]) == (0, 25), outcome.errors
    assert "a log was truncated" in outcome.errors
    assert backed_up(target, topic, 0) == old
    assert backed_up(target, topic) == log_of(cluster.broker.log_dir, topic, 0)


def test_backup_when_other_topics_are_selected_then_those_of_the_last_generation_stay(
    cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    target, other = tmp_path / "backup", f"{topic}-other"
    for name in (topic, other):
        cluster.create_topic(name)
        send(cluster, name, 10)
        assert back_up(cluster, target, name).status == 0
    assert topic_of(generation(target), topic) == topic_of(generation(target, 0), topic)
    cluster.delete_topic(topic)
    assert back_up(cluster, target, f"{topic}*").status == 0
    assert [one.name for one in generation(target).topics] == [other]


def test_backup_when_the_folder_has_other_files_then_is_refused(
    cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    outcome = back_up(cluster, tmp_path, topic)
    assert outcome.status == 2
    assert "expected a backup or an empty folder" in outcome.errors
    assert [one.name for one in tmp_path.iterdir()] == ["notes.txt"]


def test_backup_when_the_target_is_an_object_store_then_it_has_the_same_objects_and_shows_no_secret(
    cluster: Cluster, topic: str, tmp_path: Path, s3: object, s3_options: Mapping[str, str]
) -> None:
    key, secret = (quote(s3_options[name], safe="") for name in ("access_key", "secret_key"))
    query = urlencode({one: s3_options[one] for one in ("endpoint_override", "scheme", "region")})
    target = f"s3://{key}:{secret}@{BUCKET}/{topic[:40]}?{query}"
    cluster.create_topic(topic)
    for _ in range(2):
        send(cluster, topic, 100)
        outcome = back_up(cluster, target, topic, "--spool", tmp_path, "--segment-bytes", "2k")
        assert outcome.status == 0, outcome.errors
        assert outcome.summary["records"] == 100
        assert secret not in outcome.errors
    assert backed_up(storage_path(target), topic) == log_of(cluster.broker.log_dir, topic, 0)
    assert not list(tmp_path.iterdir())


def test_backup_when_a_topic_is_created_again_while_it_follows_then_continues_with_the_new_one(
    cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    target = tmp_path / "backup"
    cluster.create_topic(topic)
    send(cluster, topic, 40)
    options = ["--follow", "--topics", topic, "--source-config", "metadata.max.age.ms=1000"]
    options += ["--generation-age", "0.1", "--commit-interval", "0.1", "--segment-age", "0.1"]
    with (tmp_path / "log").open("w") as errors:
        running = subprocess.Popen(
            [KAFKAFMT, "backup", f"kafka://{cluster.bootstrap}", str(target), *options], stderr=errors
        )

    def stored() -> bytes:
        assert running.poll() is None, (tmp_path / "log").read_text()[-3000:]
        # There may be no generation yet, and one that was written between the two topics does not have it.
        topics = generation(target).topics if Repository(target).generations() else ()
        partitions = (one for found in topics if found.name == topic for one in found.partitions)
        return b"".join(bytes_of(target, one) for one in partitions)

    try:
        old = log_of(cluster.broker.log_dir, topic, 0)
        wait_until(lambda: stored() == old)
        cluster.delete_topic(topic)
        cluster.create_topic(topic)
        send(cluster, topic, 70)
        wait_until(lambda: stored() == log_of(cluster.broker.log_dir, topic, 0))
        running.terminate()
        assert running.wait(60) == 0, (tmp_path / "log").read_text()[-3000:]
    finally:
        running.kill()
        running.wait()
