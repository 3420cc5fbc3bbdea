"""Topics that a mirror makes: with the source's configuration, or such that nothing is lost where nobody knows it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

import kafkafmt as kf
from client.cluster import Cluster
from endpoints.endpoint_process import EndpointProcess
from kafkafmt.log.topic_configs import TopicConfig, read_topic_configs, set_topic_config
from mirror.folders import KEPT, NOW, batch, batches, mirror, put_log
from mirror.reading import Reader
from mirror.running import Mirror, address
from mirror.test_clusters import configuration

pytestmark = pytest.mark.slow

# Of a topic that was compacted: it stays one, and no record is old enough to be cleaned.
NEVER_CLEANED = {**KEPT, "cleanup.policy": "compact", "min.compaction.lag.ms": str(2**63 - 1)}
MakeMirror = Callable[..., Mirror]


@pytest.fixture
def receiving(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """The address of an endpoint that takes what is produced, and its folder."""
    folder = tmp_path / "received"
    folder.mkdir()
    with EndpointProcess(folder, "--allow-produce", log=tmp_path / "serve.log") as running:
        yield address(running.address), folder


def with_gap(first: int, key: bytes | None = b"k") -> bytes:
    """A batch of three offsets, of which compaction has left two."""
    builder = kf.RecordBatchBuilder(base_offset=first)
    builder.append_with_offset(first, NOW, key, b"a")
    builder.append_with_offset(first + 2, NOW, key, b"b")
    return builder.build()


def checkpoint(directory: Path, *lines: str) -> None:
    """What a broker's cleaner notes of the logs that it has cleaned."""
    text = "\n".join(["0", str(len(lines)), *lines])
    (directory / "cleaner-offset-checkpoint").write_text(text + "\n")


def test_topic_when_its_configuration_is_unknown_then_is_made_so_that_nothing_is_lost(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    for name in ("t-0", "t-1", "u-0", "known-0"):
        put_log(source / name, batches(0, 50))
    set_topic_config(source, "known", TopicConfig(1, {"retention.ms": "1000"}))
    ended = mirror(source, target)
    assert ended.status == 0
    assert read_topic_configs(target) == {
        "known": TopicConfig(1, {"retention.ms": "1000"}),
        "t": TopicConfig(2, KEPT),
        "u": TopicConfig(1, KEPT),
    }
    (warning,) = [line for line in ended.errors.splitlines() if "configuration" in line]
    assert '"topics": ["t", "u"]' in warning


def test_topic_when_its_configuration_is_unknown_then_an_endpoint_makes_it_so_too(
    receiving: tuple[str, Path], tmp_path: Path
) -> None:
    put_log(tmp_path / "source" / "t-0", batches(0, 50))
    ended = mirror(tmp_path / "source", receiving[0])
    assert (ended.status, ended.summary["records"]) == (0, 50)
    assert read_topic_configs(receiving[1])["t"] == TopicConfig(1, KEPT)
    again = mirror(tmp_path / "source", receiving[0])
    assert "configuration" not in again.errors, "it is there by now, and keeps its own"


@pytest.mark.parametrize(
    ("data", "noted", "expected"),
    [
        ([with_gap(0), batch(3)], (), NEVER_CLEANED),
        ([with_gap(0, None), batch(3)], (), KEPT),  # no cleaner keeps a record without a key
        ([batch(0), with_gap(10)], (), KEPT),  # the last segment is never cleaned
        ([batch(0), batch(10)], ("t 0 10",), NEVER_CLEANED),
        ([batch(0), batch(10)], ("u 0 10",), KEPT),
        ([batch(0), batch(10)], ("what is it",), KEPT),
    ],
    ids=["gap", "gap without keys", "gap in the last segment", "noted", "another noted", "nonsense noted"],
)
def test_topic_when_its_log_was_compacted_then_is_made_a_compacted_one_that_is_never_cleaned(
    tmp_path: Path, data: list[bytes], noted: tuple[str, ...], expected: dict[str, str]
) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    put_log(source / "t-0", data, segment_bytes=1)
    if noted:
        checkpoint(source, *noted)
    assert mirror(source, target).status == 0
    assert read_topic_configs(target)["t"].configs == expected


def test_topic_config_when_it_is_told_then_holds_for_all_topics_or_for_one(
    receiving: tuple[str, Path], tmp_path: Path
) -> None:
    source = tmp_path / "source"
    put_log(source / "t-0", [batch(0)])
    put_log(source / "u-0", [batch(0)])
    told = ("retention.ms=5000", "u:retention.ms=7000", "u:message.timestamp.type=LogAppendTime")
    options = [word for setting in told for word in ("--topic-config", setting)]
    for target, folder in ((receiving[0], receiving[1]), (tmp_path / "target", tmp_path / "target")):
        assert mirror(source, target, *options).status == 0
        found = read_topic_configs(folder)
        assert found["t"].configs == {**KEPT, "retention.ms": "5000"}
        assert found["u"].configs == {
            **KEPT,
            "retention.ms": "7000",
            "message.timestamp.type": "LogAppendTime",
        }


@pytest.mark.parametrize("setting", ["retention.ms", "=5", "t:=5", ":retention.ms=5", "a/b:retention.ms=5"])
def test_topic_config_when_it_is_none_then_is_one_line(tmp_path: Path, setting: str) -> None:
    put_log(tmp_path / "source" / "t-0", [batch(0)])
    ended = mirror(tmp_path / "source", tmp_path / "target", "--topic-config", setting)
    assert ended.status == 2
    assert "expected NAME=VALUE or TOPIC:NAME=VALUE" in ended.errors
    assert ended.errors.count("\n") == 1


@pytest.mark.broker
@pytest.mark.xdist_group("mirror")
@pytest.mark.parametrize("line", ["3.9", "4.x"])
def test_topic_when_a_folder_is_restored_then_the_broker_keeps_all_of_it(
    clusters: dict[str, Cluster], line: str, topic: str, tmp_path: Path, mirror: MakeMirror
) -> None:
    """Records of 2023, which a broker's own defaults delete as soon as they look."""
    source = tmp_path / "source"
    put_log(source / f"{topic}-0", batches(0, 50))
    put_log(source / f"{topic}-compacted-0", [with_gap(0), batch(3)], segment_bytes=1)
    cluster = clusters[line]
    with mirror(source, address(cluster)) as running:
        assert running.summary()["records"] == 62
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    assert configuration(admin, topic) == KEPT
    assert configuration(admin, f"{topic}-compacted") == NEVER_CLEANED
    with Reader(cluster.bootstrap) as reader:
        assert len(reader.records(topic)) == 50


@pytest.mark.clients
def test_property_when_the_cluster_refuses_it_then_the_error_is_its_message_without_the_request(
    tmp_path: Path,
) -> None:
    put_log(tmp_path / "source" / "t-0", batches(0, 10))
    served = tmp_path / "served"
    served.mkdir()
    with EndpointProcess(served, "--allow-produce", log=tmp_path / "log") as running:
        target = f"kafka://{running.address}"
        ended = mirror(tmp_path / "source", target, "--topic-config", "retention.ms=abc")
    assert "topic t could not be created: [Error 40] InvalidConfigurationError: " in ended.errors
    assert "expected -1 to 2^63 - 1, found 'abc'" in ended.errors
    assert "CreateTopicsRequest" not in ended.errors
