"""KIP-712 beside MirrorMaker 2's replication policies: `--rename` and `--topic-prefix`, in folders."""

from __future__ import annotations

from pathlib import Path

import pytest

from kafkafmt.log.topic_configs import TopicConfig, read_topic_configs, set_topic_config
from kafkafmt.mirror.errors import MirrorError
from kafkafmt.mirror.topic_names import TopicNames
from mirror.folders import batch, batches, log_bytes, mirror, put_log


def test_topic_when_it_is_renamed_then_its_log_and_configuration_have_the_new_name(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    for name in ("a-0", "a-1", "c-0"):
        put_log(source / name, batches(0, 50))
    set_topic_config(source, "a", TopicConfig(2, {"retention.ms": "1000"}))
    set_topic_config(source, "c", TopicConfig(1, {"retention.ms": "2000"}))
    options = ("--rename", "a=b", "--topic-prefix", "east.", "--topic-config", "b:retention.bytes=7")
    ended = mirror(source, target, *options)
    assert ended.status == 0, ended.errors
    assert read_topic_configs(target) == {
        "b": TopicConfig(2, {"retention.ms": "1000", "retention.bytes": "7"}),
        "east.c": TopicConfig(1, {"retention.ms": "2000"}),
    }
    assert log_bytes(target / "b-1") == log_bytes(source / "a-1")
    assert log_bytes(target / "east.c-0") == log_bytes(source / "c-0")
    assert ended.summary["topics"] == {"a": "b", "c": "east.c"}
    assert ended.summary["lag"] == {"a-0": 0, "a-1": 0, "c-0": 0}

    put_log(source / "a-0", [batch(50)])
    again = mirror(source, target, *options)
    assert (again.status, again.summary["records"]) == (0, 10), "it resumes under the new name"
    assert not (target / "a-0").exists()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--rename", "a"), "--rename: expected SOURCE=TARGET"),
        (("--rename", "a=b/c"), "--rename: expected SOURCE=TARGET"),
        (("--rename", "a=__b"), "--rename: expected SOURCE=TARGET"),
        (("--rename", "a=b", "--rename", "a=c"), "expected one target for topic a, found b and c"),
        (("--rename", "a=b", "--rename", "c=b"), "topics a, c would both be b at the target"),
        (("--rename", "nope=b"), "--rename nope=b: no topic nope is selected at the source"),
        (
            ("--topic-config", "x:retention.ms=1"),
            "--topic-config x:...: no topic that is written at the target",
        ),
        (("--topic-config", "foo=bar"), "--topic-config: Unknown topic config name: foo"),
        (("--topic-config", "a:retention.ms=abc"), "--topic-config: retention.ms: expected -1 to 2^63 - 1"),
        (("--rename", "a=t"), "topics a, t would both be t at the target"),
        (("--topic-prefix", "east/"), "--topic-prefix: expected characters of a topic name"),
        (("--topic-prefix", "__"), "--topic-prefix: expected characters of a topic name"),
        (("--topic-prefix", "e" * 248), "expected a legal topic name of at most 249 characters"),
        (("--groups", "g"), "--groups needs --sync-groups"),
        (("--sync-groups",), "--sync-groups needs clusters on both sides"),
        (("--heartbeats", "a,b"), "--heartbeats needs clusters on both sides"),
        (("--heartbeats", "a"), "--heartbeats: expected SOURCE,TARGET"),
        (("--sync-groups", "--groups", "("), "is no regular expression"),
    ],
    ids=lambda value: " ".join(value)[:30] if isinstance(value, tuple) else "",
)
def test_options_when_they_cannot_have_an_effect_then_are_refused_in_one_line(
    tmp_path: Path, options: tuple[str, ...], expected: str
) -> None:
    source = tmp_path / "source"
    put_log(source / "a-0", [batch(0)])
    put_log(source / "t-0", [batch(0)])
    put_log(source / "tt-0", [batch(0)])
    ended = mirror(source, tmp_path / "target", *options)
    assert ended.status == 2
    assert expected in ended.errors
    assert ended.errors.count("\n") == 1
    assert not (tmp_path / "target" / "a-0").exists()


def test_names_when_a_topic_appears_whose_name_another_has_then_only_it_is_refused() -> None:
    names = TopicNames.parsed("", ["a=t"])
    names.ensure_distinct(["a", "u"])
    assert names.refusals(["u"], ["a", "u"]) == {}
    assert "topics a, t would both be t" in names.refusals(["t"], ["a", "t", "u"])["t"]
    with pytest.raises(MirrorError, match="would both be t"):
        names.ensure_distinct(["a", "t"])
