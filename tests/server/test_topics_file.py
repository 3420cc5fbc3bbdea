"""The topics file: what it says of topics, and what is said of a wrong one."""

from __future__ import annotations

from pathlib import Path

import pytest

from kafkafmt._util.ini import IniError
from kafkafmt.log.topic_configs import TopicConfig, update_topic_configs
from kafkafmt.server.topics_file import read_topics_file


def test_topics_file_when_read_then_says_what_is_set_of_each_topic(tmp_path: Path) -> None:
    path = tmp_path / "topics.ini"
    path.write_text(
        "# for old consumers\n[orders]\nmessage.downconversion.enable = false\n\n"
        "[page-views.v2]\nmessage.downconversion.enable=TRUE\n[DEFAULT]\n"
    )
    assert read_topics_file(path).configs == {
        "orders": {"message.downconversion.enable": "false"},
        "page-views.v2": {"message.downconversion.enable": "TRUE"},
        "DEFAULT": {},
    }


def test_topics_file_when_it_is_a_topics_ini_then_is_taken(tmp_path: Path) -> None:
    configs = {
        "message.downconversion.enable": "false",
        "retention.ms": "-1",
        "cleanup.policy": "compact,delete",
    }
    update_topic_configs(tmp_path, lambda _: {"orders": TopicConfig(12, configs)})
    assert read_topics_file(tmp_path / "topics.ini").configs == {"orders": configs}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[a]\nmax.mesage.bytes = 1\n", "line 2: Unknown topic config name: max.mesage.bytes"),
        ("[a]\nretention.ms = -2\n", "line 2: retention.ms: expected -1 to 2^63 - 1, found '-2'"),
        (
            "[a]\n\nmessage.downconversion.enable = no\n",
            "line 3: message.downconversion.enable: expected true or false, found 'no'",
        ),
        ("[a]\npartitions = 0\n", "line 2: partitions is '0': 1 to 2^31 - 1 is expected"),
        ("[a/b]\n", "line 1: expected the name of a topic, found 'a/b'"),
    ],
)
def test_topics_file_when_wrong_then_the_error_names_file_and_line(
    tmp_path: Path, text: str, message: str
) -> None:
    path = tmp_path / "topics.ini"
    path.write_text(text)
    with pytest.raises(IniError) as raised:
        read_topics_file(path)
    assert str(raised.value) == f"{path}, {message}"


def test_topics_file_when_not_utf_8_then_the_error_says_where(tmp_path: Path) -> None:
    path = tmp_path / "topics.ini"
    path.write_bytes(b"[a]\n# \xff\n")
    with pytest.raises(IniError, match="not UTF-8 at position 6"):
        read_topics_file(path)
