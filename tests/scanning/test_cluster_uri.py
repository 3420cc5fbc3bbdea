"""The URI and the options of a cluster are checked before any request."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import kafkafmt as kf
from cli.logs import run
from kafkafmt.scanning.brokers.opening import parse_cluster

SERVER = "kafka://localhost:1"


def test_uri_when_it_has_brokers_and_topics_then_has_both() -> None:
    assert parse_cluster("kafka://a:9092,[::1]:9093/orders,clicks-*") == (
        "a:9092,[::1]:9093",
        ("orders", "clicks-*"),
    )
    assert parse_cluster("kafka://a:9092") == parse_cluster("kafka://a:9092/") == ("a:9092", ())


@pytest.mark.parametrize(
    ("source", "arguments", "message"),
    [
        ("kafka://localhost", {}, "expected kafka://HOST:PORT.* found 'localhost'"),
        ("kafka://localhost:70000/orders", {}, "with ports from 1 to 65535, found 'localhost:70000'"),
        ("kafka://", {}, "found ''"),
        (f"{SERVER}/orders,", {}, "found a topic without a name"),
        ("kafka://me:secret@localhost:1", {}, "^expected kafka://[^@]* without a user: options have names"),
        ([SERVER, "/logs"], {}, "expected one cluster, or several folders, found kafka://localhost:1, /logs"),
        (
            f"{SERVER}/orders",
            {"topics": "clicks"},
            "expected topics in the URI or as an argument, found both",
        ),
        (
            f"{SERVER}/orders",
            {"topics": "clicks", "partitions": [("orders", 0)]},
            "expected topics in the URI or as an argument, found both",
        ),
        (
            SERVER,
            {"options": {"security.protcol": "SSL"}},
            "unknown client option 'security.protcol': did you mean",
        ),
        (
            SERVER,
            {"options": {"group.id": "me"}},
            "option group.id: expected it left out: a scan commits no offsets",
        ),
        (
            SERVER,
            {"options": {"isolation.level": "read_committed"}},
            r"expected it left out: isolation \(--isolation\) sets it",
        ),
        (SERVER, {"options": {"bootstrap.servers": "a:1"}}, "expected it left out: the URI has the brokers"),
        (SERVER, {"options": {"poll.timeout.ms": "soon"}}, "expected milliseconds, 1 or more, found 'soon'"),
        (SERVER, {"from_segment_start": True}, "from_segment_start: expected it left out"),
        (SERVER, {"check_overlaps": False}, r"check_overlaps \(--check-overlaps\): expected it left out"),
    ],
)
def test_scan_when_the_uri_or_its_options_are_wrong_then_one_line_says_so(
    source: Any, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(kf.ScanError, match=message) as raised:
        kf.scan(source, **arguments)
    assert "\n" not in str(raised.value)
    assert "secret" not in str(raised.value)


def test_export_when_told_to_check_overlaps_then_the_scan_is(tmp_path: Path) -> None:
    result = run("export", f"{SERVER}/orders", tmp_path, "--check-overlaps")
    assert result.exit_code != 0
    assert "--check-overlaps): expected it left out: brokers read the segments of a cluster" in result.stderr
