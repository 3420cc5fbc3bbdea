"""Topics and groups that are restored into another cluster."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote, urlencode

import pytest
from pyarrow.fs import FileSystem

from _kafkafmt.wire.layout import RECORD_BATCH_OVERHEAD
from backup.backing_up import back_up
from backup.stored import write_key_ring
from cli.logs import run
from client.cluster import Cluster
from data.real_logs import LOGS, NAMES
from file_systems import BUCKET
from kafkafmt.log import LogDirectory
from kafkafmt.log.topic_configs import TopicConfig, update_topic_configs
from kafkafmt.mirror.clusters import MirrorCluster
from kafkafmt.mirror.errors import MirrorError
from kafkafmt.restore.options import THROTTLED_REPLICAS
from mirror.folders import batches, put_log
from restore.restoring import (
    YEAR_2020_MS,
    commit,
    contents,
    first_record_of,
    restore,
    send,
    send_transactions,
    topic_configs,
    values,
)

pytestmark = [pytest.mark.broker, pytest.mark.xdist_group("restore")]

AFTER_OPEN_TRANSACTION = 18
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


@pytest.mark.parametrize(
    ("source", "target"),
    [("3.9", "4.x"), ("4.x", "other 4.x"), pytest.param("4.x", "3.9", marks=pytest.mark.full)],
    ids=["from-3.9", "from-4.x", "to-3.9"],
)
def test_restore_when_into_another_cluster_then_records_configs_and_groups_are_there(
    clusters: dict[str, Cluster], topic: str, tmp_path: Path, source: str, target: str
) -> None:
    old, new = clusters[source], clusters[target]
    configs = {"cleanup.policy": "compact", "segment.bytes": 1048576, "min.insync.replicas": 1}
    if source == "3.9":
        configs["message.format.version"] = "3.0"
    old.create_topic(topic, 3, configs)
    for number, codec in enumerate(CODECS):
        send(old, topic, range(100 * number, 100 * number + 100), codec=codec)
    send_transactions(old, topic, "cacco", partition=1)
    send(old, topic, range(7), partition=1)
    commit(old, f"{topic}-group", topic, {0: 333, 1: 8, 2: 0})
    old_records = old.consume(topic)
    backup = tmp_path / "backup"
    assert back_up(old, backup, topic, "--compress", "--segment-bytes", "8k").status == 0
    outcome = restore(backup, new)
    assert outcome.status == 0, outcome.errors
    assert outcome.summary["possibly_doubled"] == 0
    assert contents(new.consume(topic, 0, isolation="read_committed")) == contents(old_records)
    committed = [record.value for record in new.consume(topic, 1, isolation="read_committed")]
    assert committed == [
        *(f"c {number} {record}".encode() for number in (0, 2, 3) for record in range(3)),
        *(f"value {number}".encode() * 3 for number in range(7)),
    ]
    assert not new.consume(topic, 2)
    (plan,) = outcome.summary["topics"]
    assert (plan["partitions"], plan["configs"]["cleanup.policy"]) == (3, "compact")
    assert set(plan["refused_configs"]) == ({"message.format.version"} if source == "3.9" else set())
    group = f"{topic}-group"
    assert first_record_of(new, group, topic) == b"value 333" * 3
    assert first_record_of(new, group, topic, 1) == b"c 2 0"
    assert first_record_of(new, group, topic, 2) is None


def test_restore_when_topics_have_other_records_then_is_refused_and_nothing_is_changed(
    old: Cluster, new: Cluster, topic: str
) -> None:
    first, second = f"{topic}-a", f"{topic}-b"
    for name in (first, second):
        old.create_topic(name)
        send(old, name, range(10))
    new.create_topic(second)
    send(new, second, range(3))
    outcome = restore(old.broker.log_dir, new, "--topics", f"{topic}-?")
    assert outcome.status == 2
    assert f"found records in {second}" in outcome.errors
    assert not (new.broker.log_dir / f"{first}-0").exists()
    again = restore(old.broker.log_dir, new, "--topics", f"{topic}-?", "--rename", r"(.*)-b=\1-c")
    assert (again.status, again.summary["records"]) == (0, 20), again.errors
    assert values(new, f"{topic}-c") == values(old, second)
    repeated = restore(old.broker.log_dir, new, "--topics", f"{topic}-?", "--rename", r"(.*)-b=\1-c")
    assert (repeated.status, repeated.summary["records"]) == (0, 0), repeated.errors


def test_restore_when_to_a_time_then_ends_before_its_first_record_and_groups_continue_at_the_end(
    old: Cluster, new: Cluster, topic: str
) -> None:
    old.create_topic(topic, 2)
    send(old, topic, range(50))
    send_transactions(old, topic, "ca", partition=1)  # with timestamps of today
    commit(old, f"{topic}-group", topic, {0: 40})
    outcome = restore(old.broker.log_dir, new, "--topics", topic, "--to", "2020-01-01T00:00:00.033Z")
    assert outcome.status == 0, outcome.errors
    assert values(new, topic) == values(old, topic)[:33]
    assert not values(new, topic, 1)
    assert first_record_of(new, f"{topic}-group", topic) is None
    later = restore(old.broker.log_dir, new, "--topics", topic)
    assert later.status == 2
    assert "found records in" in later.errors


def test_restore_when_it_has_a_range_of_time_then_has_its_records_and_groups_continue_within(
    old: Cluster, new: Cluster, topic: str
) -> None:
    old.create_topic(topic, 1)
    send(old, topic, range(50))
    for group, offset in (("before", 3), ("within", 20), ("after", 49)):
        commit(old, f"{topic}-{group}", topic, {0: offset})
    times = ("--from", YEAR_2020_MS + 7, "--to", YEAR_2020_MS + 33)
    outcome = restore(old.broker.log_dir, new, "--topics", topic, *times)
    assert outcome.status == 0, outcome.errors
    assert values(new, topic) == values(old, topic)[7:33]
    firsts = {
        group: first_record_of(new, f"{topic}-{group}", topic) for group in ("before", "within", "after")
    }
    old_values = values(old, topic)
    assert firsts == {"before": old_values[7], "within": old_values[20], "after": None}


def test_restore_when_retention_is_finite_then_old_records_stay_and_the_summary_names_it(
    old: Cluster, new: Cluster, topic: str
) -> None:
    configs = {
        "retention.ms": 604800000,
        "message.timestamp.type": "CreateTime",
        "max.message.bytes": 5000,
        "message.timestamp.after.max.ms": 1000,
    }
    old.create_topic(topic, 1, {**configs, "retention.ms": -1})
    send(old, topic, range(30))
    old.alter_topic(topic, {**configs, "message.timestamp.type": "LogAppendTime"})
    send(old, topic, range(30, 60))
    old.alter_topic(topic, {"retention.ms": 10**15})  # so that the records stay at the source
    before = old.consume(topic)
    outcome = restore(old.broker.log_dir, new, "--topics", topic)
    assert outcome.status == 0, outcome.errors
    assert contents(new.consume(topic, isolation="read_committed")) == contents(before)
    assert outcome.summary["kept_retention"] == {
        topic: {"retention.ms": str(10**15), "retention.bytes": None}
    }
    found = topic_configs(new, topic)
    assert found == {
        "max.message.bytes": "5000",
        "message.timestamp.after.max.ms": "1000",
        "message.timestamp.type": "LogAppendTime",
        "retention.bytes": "-1",
        "retention.ms": "-1",
    }
    again = restore(old.broker.log_dir, new, "--topics", topic, "--set-retention")
    assert again.status == 0, again.errors
    assert topic_configs(new, topic) == {
        name: value
        for name, value in {**found, "retention.ms": str(10**15)}.items()
        if name != "retention.bytes"
    }
    given = restore(
        old.broker.log_dir, new, "--topics", topic, "--topic-config", f"{topic}:retention.ms={10**14}"
    )
    assert given.status == 0, given.errors
    assert given.summary["kept_retention"] == {topic: {"retention.bytes": None}}
    assert topic_configs(new, topic) == {**found, "retention.ms": str(10**14)}


def test_restore_when_brokers_refuse_a_given_property_then_no_topic_is_created(
    new: Cluster, topic: str, tmp_path: Path
) -> None:
    put_log(tmp_path / f"{topic}-0", batches(0, 10))
    for options in ((), ("--dry-run",)):
        outcome = restore(tmp_path, new, "--topic-config", "retention.ms=7d", *options)
        assert outcome.status == 2
        line = outcome.errors.splitlines()[-1]
        assert line.startswith("kafkafmt: --topic-config retention.ms=7d: ")
        assert f"topic {topic} at kafka://{new.bootstrap} cannot have it: " in line
    assert not (new.broker.log_dir / f"{topic}-0").exists()


def test_restore_when_a_topic_has_fewer_replicas_than_must_be_in_sync_then_the_property_is_refused(
    new: Cluster, topic: str, tmp_path: Path
) -> None:
    put_log(tmp_path / f"{topic}-0", batches(0, 10))
    for options in (("--dry-run",), ("--replication-factor", "1"), ()):
        outcome = restore(tmp_path, new, "--topic-config", "min.insync.replicas=3", *options)
        assert outcome.status == 2
        line = outcome.errors.splitlines()[-1]
        assert line.endswith("cannot have it: expected at most the number of replicas, 1, found 3")
    assert not (new.broker.log_dir / f"{topic}-0").exists()
    update_topic_configs(tmp_path, lambda _: {topic: TopicConfig(1, {"min.insync.replicas": "2"})})
    reason = "expected at most the number of replicas, 1, found 2"
    for options in (("--dry-run",), ()):
        outcome = restore(tmp_path, new, *options)
        assert outcome.status == 0, outcome.errors
        assert outcome.summary["topics"][0]["refused_configs"] == {"min.insync.replicas": reason}


def test_restore_when_brokers_refuse_the_retention_of_the_source_then_it_stays_unlimited(
    new: Cluster, topic: str, tmp_path: Path
) -> None:
    put_log(tmp_path / f"{topic}-0", batches(0, 10))
    configs = {"retention.ms": "7d", "retention.bytes": str(10**12)}
    update_topic_configs(tmp_path, lambda _: {topic: TopicConfig(1, configs)})
    outcome = restore(tmp_path, new, "--set-retention")
    assert outcome.status == 0, outcome.errors
    reason = "Invalid value 7d for configuration retention.ms: Not a number of type LONG"
    assert outcome.summary["topics"][0]["refused_configs"] == {"retention.ms": reason}
    assert outcome.summary["kept_retention"] == {}
    assert topic_configs(new, topic) == {"retention.bytes": str(10**12), "retention.ms": "-1"}
    expected = (
        f"topic {topic} gets retention.ms=-1 and deletes no records by age: brokers refuse the backup's value: "
        f"{reason}; --topic-config {topic}:retention.ms=VALUE sets another, and so does "
    )
    for options in ((), ("--dry-run",)):
        told = run("restore", tmp_path, f"kafka://{new.bootstrap}", "--set-retention", *options).stderr
        assert expected in told
        assert "--delete-config retention.ms" not in told


def test_restore_when_a_topic_has_throttles_of_replicas_then_they_are_named_and_left_out(
    new: Cluster, topic: str, tmp_path: Path
) -> None:
    put_log(tmp_path / f"{topic}-0", batches(0, 10))
    throttles = dict.fromkeys(sorted(THROTTLED_REPLICAS), "0:1")
    update_topic_configs(tmp_path, lambda _: {topic: TopicConfig(1, {**throttles, "segment.ms": "100000"})})
    reasons = dict.fromkeys(throttles, "it names brokers of the old cluster")
    for options in (("--dry-run",), ()):
        outcome = restore(tmp_path, new, *options)
        assert outcome.status == 0, outcome.errors
        (plan,) = outcome.summary["topics"]
        assert (plan["configs"], plan["refused_configs"]) == ({"segment.ms": "100000"}, reasons)
    assert not throttles.keys() & topic_configs(new, topic).keys()


def test_restore_when_a_group_has_offsets_of_a_missing_partition_then_they_are_left_out_and_counted(
    old: Cluster, new: Cluster, topic: str, tmp_path: Path
) -> None:
    old.create_topic(topic, 3, {})
    for partition in range(3):
        send(old, topic, range(10), partition=partition)
    commit(old, f"{topic}-group", topic, {0: 4, 2: 5})
    commit(old, f"{topic}-lost", topic, {2: 5})
    for folder in old.broker.log_dir.iterdir():
        if folder.name.startswith((f"{topic}-", "__consumer_offsets-")) and folder.name != f"{topic}-2":
            shutil.copytree(folder, tmp_path / folder.name)
    groups = ("--groups", f"{topic}-group,{topic}-lost")
    outcome = restore(tmp_path, new, "--topics", topic, *groups)
    assert outcome.status == 0, outcome.errors
    assert outcome.summary["groups"] == {
        "committed": {f"{topic}-group": 1},
        "ahead": {},
        "without_partition": {f"{topic}-group": 1, f"{topic}-lost": 1},
        "refused": [],
    }
    assert first_record_of(new, f"{topic}-group", topic) == b"value 4" * 3
    assert "max.message.bytes" not in topic_configs(new, topic)  # it is set during a restore


def test_restore_when_groups_cannot_be_committed_then_topics_get_their_configuration(
    old: Cluster, new: Cluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    old.create_topic(topic, 1, {"max.message.bytes": 5000})
    send(old, topic, range(10))
    commit(old, f"{topic}-group", topic, {0: 4})

    def refuse(*_: object) -> None:
        raise MirrorError("refused")

    monkeypatch.setattr(MirrorCluster, "commit_group_offsets", refuse)
    outcome = restore(old.broker.log_dir, new, "--topics", topic)
    assert outcome.status == 2
    assert topic_configs(new, topic) == {
        "max.message.bytes": "5000",
        "retention.bytes": "-1",
        "retention.ms": "-1",
    }


def test_restore_when_dry_then_says_what_would_be_done_and_changes_nothing(
    old: Cluster, new: Cluster, topic: str
) -> None:
    old.create_topic(topic, 2, {"cleanup.policy": "compact"})
    send(old, topic, range(10))
    commit(old, f"{topic}-group", topic, {0: 5})
    outcome = restore(
        old.broker.log_dir, new, "--topics", topic, "--dry-run", "--rename", f"{topic}=x-{topic}"
    )
    assert outcome.status == 0, outcome.errors
    (plan,) = outcome.summary["topics"]
    assert plan == {
        "topic": topic,
        "target": f"x-{topic}",
        "partitions": 2,
        "is_there": False,
        "configs": {"cleanup.policy": "compact"},
        "refused_configs": {},
    }
    assert outcome.summary["partitions"][f"{topic}-0"] == {"start": 0, "end": 10}
    assert outcome.summary["groups"] == [f"{topic}-group"]
    assert not list(new.broker.log_dir.glob(f"x-{topic}*"))
    too_many = restore(old.broker.log_dir, new, "--topics", topic, "--replication-factor", 3, "--dry-run")
    assert too_many.status == 2
    assert "eplication factor" in too_many.errors


def test_restore_when_the_backup_grows_then_each_generation_can_be_restored(
    old: Cluster, new: Cluster, topic: str, tmp_path: Path
) -> None:
    backup, keys = tmp_path / "backup", write_key_ring(tmp_path)
    sealed = ("--key-ring", keys, "--key-id", "main", "--compress")
    old.create_topic(topic)
    send(old, topic, range(100))
    assert back_up(old, backup, topic, *sealed).status == 0
    send(old, topic, range(100, 130))
    commit(old, f"{topic}-group", topic, {0: 120})
    assert back_up(old, backup, topic, *sealed).status == 0
    sent = values(old, topic)
    ring = ("--key-ring", keys)
    assert restore(f"backup+file://{backup}", new, *ring, "--rename", f"{topic}={topic}-2").status == 0
    assert restore(backup, new, *ring, "--generation", 1, "--rename", f"{topic}={topic}-1").status == 0
    assert (values(new, f"{topic}-1"), values(new, f"{topic}-2")) == (sent[:100], sent)
    assert first_record_of(new, f"{topic}-group", f"{topic}-2") == sent[120]
    missing = restore(backup, new, "--rename", f"{topic}={topic}-3")
    assert missing.status == 2
    assert "key" in missing.errors


def test_restore_when_batches_are_sent_as_they_are_then_only_fields_of_the_producer_differ(
    old: Cluster, new: Cluster, topic: str, tmp_path: Path
) -> None:
    old.create_topic(topic)
    for codec in CODECS:
        send(old, topic, range(40), codec=codec)
    assert back_up(old, tmp_path / "backup", topic).status == 0
    assert restore(tmp_path / "backup", new).status == 0
    before, after = old.batches(topic), new.batches(topic)
    assert len(before) > len(CODECS)
    assert [one.codec for one in after] == [one.codec for one in before]
    for one, other in zip(before, after, strict=True):
        assert bytes(one.buffer)[RECORD_BATCH_OVERHEAD:] == bytes(other.buffer)[RECORD_BATCH_OVERHEAD:]
        same = ("base_timestamp", "max_timestamp", "timestamp_type", "count", "size_in_bytes", "base_offset")
        assert [getattr(one, name) for name in same] == [getattr(other, name) for name in same]


@pytest.mark.full
def test_restore_when_the_log_has_many_gaps_then_groups_continue_at_exactly_their_record(
    old: Cluster, new: Cluster, topic: str, tmp_path: Path
) -> None:
    old.create_topic(topic)
    send_transactions(old, topic, "cacacacca")
    offsets = range(0, 37, 3)
    for offset in offsets:
        commit(old, f"{topic}-{offset}", topic, {0: offset})
    assert back_up(old, tmp_path / "backup", topic).status == 0
    assert restore(tmp_path / "backup", new, "--commit-interval", 0.1).status == 0
    for offset in offsets:
        group = f"{topic}-{offset}"
        assert first_record_of(new, group, topic) == first_record_of(old, group, topic), offset


@pytest.mark.full
def test_restore_when_the_backup_is_in_an_object_store_then_records_are_there_and_no_secret_is_shown(
    old: Cluster, new: Cluster, topic: str, s3_options: Mapping[str, str], s3: FileSystem
) -> None:
    key, secret = (quote(s3_options[name], safe="") for name in ("access_key", "secret_key"))
    query = urlencode({one: s3_options[one] for one in ("endpoint_override", "scheme", "region")})
    uri = f"s3://{key}:{secret}@{BUCKET}/{topic}?{query}"
    old.create_topic(topic)
    send(old, topic, range(40), codec="lz4")
    outcome = back_up(old, uri, topic)
    assert outcome.status == 0, outcome.errors
    dry = restore(uri, new, "--dry-run")
    assert dry.status == 0, dry.errors
    for source in (uri, f"backup+{uri}"):
        outcome = restore(source, new)
        assert outcome.status == 0, outcome.errors
        assert secret not in f"{outcome} {dry}"
    assert values(new, topic) == values(old, topic)
    missing = restore(uri, new, "--generation", 7)
    assert missing.status == 2
    assert "no generation 7" in missing.errors
    assert secret not in missing.errors


@pytest.mark.full
def test_restore_when_logs_have_gaps_and_old_formats_then_records_are_those_of_the_logs(
    new: Cluster, topic: str
) -> None:
    outcome = restore(LOGS, new, "--rename", rf"(.*)={topic}.\1")
    assert outcome.status == 0, outcome.errors
    logs = LogDirectory(LOGS)
    for name in NAMES:
        read_topic, _, partition = name.rpartition("-")
        log = logs.partition((read_topic, int(partition)))
        records = list(log.records(isolation="read_committed"))
        if name == "open-transaction-0":  # a consumer would wait for its end before these
            records += log.records(AFTER_OPEN_TRANSACTION)
        expected = [(one.key, one.value, one.timestamp, one.headers) for one in records]
        found = new.consume(f"{topic}.{read_topic}", int(partition), isolation="read_committed")
        assert [(one.key, one.value, one.timestamp, one.headers) for one in found] == expected, name
