"""The file of topics beside the logs: what is written comes back, and what is wrong with one is told."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from calls import calls_of
from kafkafmt._util.ini import IniError
from kafkafmt.log.topic_configs import (
    TopicConfig,
    read_topic_configs,
    set_topic_config,
    update_topic_configs,
)


def test_topics_when_written_then_come_back_as_they_were(tmp_path: Path) -> None:
    topics = {
        "orders": TopicConfig(
            12, {"message.timestamp.type": "LogAppendTime", "cleanup.policy": "compact,delete"}
        ),
        "page.views-1": TopicConfig(1),
        "follower": TopicConfig(
            None, {"follower.replication.throttled.replicas": "0:1,1:2", "odd": "100% = #;x", "empty": ""}
        ),
    }
    update_topic_configs(tmp_path, lambda _: topics)
    assert read_topic_configs(tmp_path) == topics
    assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", "topics.ini"]


def test_topics_when_there_is_no_file_then_there_are_none(tmp_path: Path) -> None:
    assert read_topic_configs(tmp_path) == {}


def test_topic_when_set_then_the_others_stay(tmp_path: Path) -> None:
    (tmp_path / "topics.ini").write_text("# by hand\n[a]\npartitions = 3\nmax.message.bytes=77\n")
    set_topic_config(tmp_path, "b", TopicConfig(1))
    set_topic_config(tmp_path, "a", TopicConfig(4, {"max.message.bytes": "78"}))
    assert read_topic_configs(tmp_path) == {
        "a": TopicConfig(4, {"max.message.bytes": "78"}),
        "b": TopicConfig(1),
    }


def test_topics_when_many_set_theirs_at_a_time_then_none_is_lost(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda i: set_topic_config(tmp_path, f"t{i}", TopicConfig(i + 1)), range(40)))
    assert {name: topic.partitions for name, topic in read_topic_configs(tmp_path).items()} == {
        f"t{i}": i + 1 for i in range(40)
    }


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("a", "two\nlines"),
        ("a", " blank"),
        ("", "x"),
        ("#a", "x"),
        ("[a", "x"),
        ("a=b", "x"),
        ("partitions", "3"),
    ],
)
def test_topics_when_an_ini_cannot_keep_something_then_it_is_told_and_the_file_stays(
    tmp_path: Path, key: str, value: str
) -> None:
    set_topic_config(tmp_path, "a", TopicConfig(1))
    before = (tmp_path / "topics.ini").read_bytes()
    with pytest.raises(ValueError, match="expected"):
        set_topic_config(tmp_path, "b", TopicConfig(1, {key: value}))
    assert (tmp_path / "topics.ini").read_bytes() == before


@pytest.mark.parametrize("count", ["0", "-1", "x", "2147483648", "٣", ""])
def test_topics_when_a_partition_count_is_none_then_its_line_is_told(tmp_path: Path, count: str) -> None:
    (tmp_path / "topics.ini").write_text(f"[a]\nx = y\npartitions = {count}\n")
    with pytest.raises(IniError, match=r"topics.ini, line 3: partitions is .*: 1 to 2\^31 - 1 is expected"):
        read_topic_configs(tmp_path)


@pytest.mark.parametrize("name", ["..", "a/b", "a b", "x" * 250])
def test_topics_when_a_section_is_named_as_no_topic_then_its_line_is_told(tmp_path: Path, name: str) -> None:
    (tmp_path / "topics.ini").write_text(f"[a]\n[{name}]\npartitions = 1\n")
    with pytest.raises(IniError, match=r"topics.ini, line 2: expected the name of a topic, found"):
        read_topic_configs(tmp_path)
    (tmp_path / "topics.ini").unlink()
    with pytest.raises(ValueError, match="expected the name of a topic"):
        set_topic_config(tmp_path, name, TopicConfig(1))


def test_topics_when_four_times_as_many_keys_then_reading_takes_four_times_as_many_calls(
    tmp_path: Path,
) -> None:
    def calls(keys: int) -> int:
        folder = tmp_path / str(keys)
        folder.mkdir()
        lines = "".join(f"made.up.{number} = x\n" for number in range(keys))
        (folder / "topics.ini").write_text(f"[a]\n{lines}[b]\n{lines}")
        return calls_of(lambda: read_topic_configs(folder))

    calls(1)  # what is done once
    assert calls(2000) < 5 * calls(500)
