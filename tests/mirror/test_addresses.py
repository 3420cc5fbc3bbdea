"""What a mirror is told to move from and to."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kafkafmt.mirror.addresses import ClusterAddress, parse_address

# Brokers list only topics that the user may describe.
HIDDEN = ", or this user lacks the right Describe on it"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("kafka://a:9092", ClusterAddress(("a:9092",))),
        ("kafka://a:9092/", ClusterAddress(("a:9092",))),
        ("kafka://a:1,[::1]:2/t", ClusterAddress(("a:1", "[::1]:2"), ("t",))),
        ("kafka://a:1/t.x,u_-", ClusterAddress(("a:1",), ("t.x", "u_-"))),
        ("kafka://a:1/t,u.*,v|w", ClusterAddress(("a:1",), ("t",), ("u.*", "v|w"))),
        ("kafka://a:1/t{1,2},[a,b]c", ClusterAddress(("a:1",), (), ("t{1,2}", "[a,b]c"))),
        ("/backup", Path("/backup")),
        ("offsets", Path("offsets")),
        ("file:///backup/logs", Path("/backup/logs")),
    ],
)
def test_address_is_parsed(text: str, expected: object) -> None:
    assert parse_address(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "http://a:1",
        "kafka://",
        "kafka://a",
        "kafka://a:0",
        "kafka://a:65536",
        "kafka://a:1,/t",
        "kafka://a:1/t,,u",
        "kafka://a:1/,t",
        "kafka://a:1/(t",
    ],
)
def test_address_that_is_none_is_refused_in_a_line_that_has_it(text: str) -> None:
    with pytest.raises(ValueError, match=r"^[^\n]+$") as caught:
        parse_address(text)
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("topics", "wanted"),
    [
        ("(?i)orders.*", "(?i:...)"),
        ("t,(?i)orders.*", "(?i:...)"),
        (r"(a)x\1,(b)y\1", "(?P<name>...)"),
        ("(a)?b,(c)?(?(1)d|e)", "(?P<name>...)"),
        ("(?P<n>a).*,(?P<n>b).*", "names of groups that differ"),
    ],
)
def test_expressions_when_they_cannot_be_joined_for_a_subscription_then_are_refused_with_what_to_write(
    topics: str, wanted: str
) -> None:
    with pytest.raises(ValueError, match=r"^[^\n]+$") as caught:
        parse_address(f"kafka://a:1/{topics}")
    assert wanted in str(caught.value)


@pytest.mark.parametrize(
    ("topics", "meant", "others"),
    [
        ("", ["t", "_t", "t__u"], ["__consumer_offsets"]),
        ("/t.x", ["t.x"], ["t_x", "t.xy"]),
        ("/t.x,u.*", ["t.x", "u", "u1"], ["tyx", "vu", "t.xu"]),
        ("/a|b", ["a", "b"], ["ab", "ac"]),
        ("/t,__consumer.*", ["t", "__consumer_offsets"], ["__transaction_state"]),
        ("/(?i:orders).*,t", ["Orders-1", "t"], ["T"]),
        (r"/(a)x\1,by", ["axa", "by"], ["axb"]),
        ("/(?P<n>a)x(?P=n),(?P<m>b)y(?P=m)", ["axa", "byb"], ["axb", "bya"]),
        (r"/(a).*,t\\?1", ["ab", "t1"], ["t"]),
    ],
)
def test_topics_that_are_meant(topics: str, meant: list[str], others: list[str]) -> None:
    address = parse_address(f"kafka://a:1{topics}")
    assert isinstance(address, ClusterAddress)
    assert [address.matches(topic) for topic in meant] == [True] * len(meant)
    assert [address.matches(topic) for topic in others] == [False] * len(others)
    if address.pattern is not None:  # the consumer's subscription
        assert [bool(re.match(address.pattern, topic)) for topic in (*meant, *others)] == [
            *[True] * len(meant),
            *[False] * len(others),
        ]


@pytest.mark.parametrize(
    ("topics", "missing"),
    [
        (["t", "page-*"], None),
        (["t", "nope*"], "no topic matches 'nope*'"),
        (["nope*", "u", "v"], "no topic u, v"),
        (["[t"], "no topic matches '[t'"),
    ],
)
def test_topics_when_a_name_or_a_glob_has_no_topic_then_it_is_shown_as_it_was_written(
    topics: list[str], missing: str | None
) -> None:
    address = parse_address("kafka://a:1")
    assert isinstance(address, ClusterAddress)
    selected = address.with_topics(topics)
    expected = None if missing is None else missing + HIDDEN
    assert selected.missing(["t", "page-1", "__consumer_offsets"]) == expected
    assert {*selected.topics_text.split(",")} == {*topics}


@pytest.mark.parametrize(
    ("topics", "missing"), [("/t,u.*,v", "no topic v"), ("/t,u.*", "no topic matches 'u.*'")]
)
def test_topics_of_an_address_when_an_expression_has_no_topic_then_it_is_missing(
    topics: str, missing: str
) -> None:
    address = parse_address(f"kafka://a:1{topics}")
    assert isinstance(address, ClusterAddress)
    assert address.missing(["t"]) == missing + HIDDEN


def test_address_without_topics_when_the_cluster_has_only_its_own_then_these_are_excepted() -> None:
    address = parse_address("kafka://a:1")
    assert isinstance(address, ClusterAddress)
    assert address.missing(["__consumer_offsets"]) == f"no topic but Kafka's own{HIDDEN}"


@pytest.mark.parametrize("text", ["kafka://a:1", "kafka://a:1,b:2/t,u.*"])
def test_address_is_written_as_it_was_read(text: str) -> None:
    assert str(parse_address(text)) == text


def test_address_when_it_has_a_user_then_the_error_does_not_show_it() -> None:
    with pytest.raises(ValueError, match="without a user") as caught:
        parse_address("kafka://me:hunter2@localhost:9092/t")
    assert "hunter2" not in str(caught.value)
