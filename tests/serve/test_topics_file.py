"""The topics file: what it says of topics, and what is said of a wrong one."""

from __future__ import annotations

from pathlib import Path

import pytest

from kafkafmt.ini import IniError
from kafkafmt.serve.options import TopicOptions
from kafkafmt.serve.topics_file import read_topics_file


def test_topics_file_when_read_then_says_what_is_set_of_each_topic(tmp_path: Path) -> None:
    path = tmp_path / "topics.ini"
    path.write_text(
        "# for old consumers\n[orders]\nmessage.downconversion.enable = false\n\n"
        "[page-views.v2]\nmessage.downconversion.enable=TRUE\n[DEFAULT]\n"
    )
    assert read_topics_file(path) == {
        "orders": TopicOptions(downconversion_enable=False),
        "page-views.v2": TopicOptions(downconversion_enable=True),
        "DEFAULT": TopicOptions(),
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "[a]\nretention.ms = 1\n",
            "line 2: retention.ms is no property of a topic here: message.downconversion.enable is",
        ),
        (
            "[a]\n\nmessage.downconversion.enable = no\n",
            "line 3: message.downconversion.enable is 'no': true or false is expected",
        ),
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
