"""Folders that say what cannot be: the mirror ends with one line and status 2, and writes only to its target."""

from __future__ import annotations

from pathlib import Path

import pytest

from kafkafmt.log.topic_configs import TopicConfig
from kafkafmt.memory import MemoryBudget
from kafkafmt.mirror.options import MirrorOptions
from kafkafmt.mirror.protocols import PartitionError, SourceTopic
from kafkafmt.mirror.statistics import Statistics
from kafkafmt.mirror.targets.directory import DirectoryTarget
from kafkafmt.types import TopicPartition
from mirror.folders import batch, log_bytes, mirror, put_log

pytestmark = pytest.mark.slow

WRONG = {
    "not-utf-8": (b"[orders]\nnote = \xff\n", "not UTF-8"),
    "a-name-that-leads-elsewhere": (b"[../evil]\npartitions = 1\n", "'../evil'"),
    "partitions-of-many-digits": (b"[orders]\npartitions = " + b"9" * 5000 + b"\n", "partitions"),
    "a-segment-too-large": (b"[orders]\nsegment.bytes = 99999999999\n", "segment.bytes"),
    "a-segment-of-many-digits": (b"[orders]\nsegment.bytes = " + b"9" * 5000 + b"\n", "segment.bytes"),
    "a-segment-of-nothing": (b"[orders]\nsegment.bytes = 0\n", "segment.bytes"),
    "a-segment-of-words": (b"[orders]\nsegment.bytes = 1g\n", "segment.bytes"),
    "no-ini": (b"orders\n", "topics.ini"),
}


@pytest.mark.parametrize("side", ["source", "target"])
@pytest.mark.parametrize("wrong", WRONG)
def test_topics_ini_when_it_says_what_cannot_be_then_is_told_in_one_line(
    tmp_path: Path, wrong: str, side: str
) -> None:
    content, told = WRONG[wrong]
    put_log(tmp_path / "source" / "orders-0", [batch(0)])
    (tmp_path / side).mkdir(exist_ok=True)
    (tmp_path / side / "topics.ini").write_bytes(content)
    outcome = mirror(tmp_path / "source", tmp_path / "target", "--once")
    if (
        side == "target" and "segment" in wrong
    ):  # the source's own configuration takes its place, or it is refused
        assert outcome.status in {0, 2}
    else:
        assert outcome.status == 2
        assert told in outcome.errors
    last = outcome.errors.splitlines()[-1] if outcome.errors else ""
    assert "Traceback" not in outcome.errors
    assert len(last) < 1000
    assert {path.name for path in tmp_path.iterdir()} <= {"source", "target"}


@pytest.mark.parametrize("name", ["..-0", ".-0"])
def test_folder_when_its_topic_has_no_legal_name_then_is_no_partition(tmp_path: Path, name: str) -> None:
    put_log(tmp_path / "source" / "orders-0", [batch(0)])
    put_log(tmp_path / "source" / name, [batch(0)])
    outcome = mirror(tmp_path / "source", tmp_path / "target", "--once")
    assert outcome.status == 0, outcome.errors
    assert not (tmp_path / "target" / name).exists()
    assert log_bytes(tmp_path / "target" / "orders-0") == batch(0)


@pytest.mark.parametrize("name", ["../evil", "..", "a/b", "/tmp/evil", ""])
def test_target_when_a_cluster_names_a_topic_that_leads_elsewhere_then_makes_nothing(
    tmp_path: Path, name: str
) -> None:
    path = tmp_path / "target"
    target = DirectoryTarget(path, Statistics(MemoryBudget(1024)), MirrorOptions(tmp_path / "source", path))
    try:
        target.prepare({name: SourceTopic(TopicConfig(1)), "orders": SourceTopic(TopicConfig(1))})
        with pytest.raises(PartitionError, match="expected the name of a topic"):
            target.resume_offset(TopicPartition(name, 0))
        assert target.resume_offset(TopicPartition("orders", 0)) is None
    finally:
        target.close()
    assert {path.name for path in tmp_path.iterdir()} == {"target"}
    assert {path.name for path in (tmp_path / "target").iterdir()} == {".lock", "orders-0", "topics.ini"}
