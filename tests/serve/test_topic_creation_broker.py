"""Topics that a real broker refuses and those that it makes: the endpoint answers the same, to the error code."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from endpoints.raw_client import RawClient
from endpoints.served import Served
from serve.produced import create_topics

if TYPE_CHECKING:
    from broker.broker import Broker

pytestmark = [pytest.mark.broker, pytest.mark.xdist_group("broker")]

VERSION = 7
INVALID_CONFIG = 40
# Kafka 4 has no down-conversion any more.
GONE_IN_4 = ("message.downconversion.enable=true", "message.downconversion.enable=false")
SECONDS = 60
VALUES = ("-1", "0", "1", "5", "0.5", "true", "x", "")
NUMBERS = (
    "delete.retention.ms",
    "file.delete.delay.ms",
    "flush.messages",
    "flush.ms",
    "index.interval.bytes",
    "max.compaction.lag.ms",
    "max.message.bytes",
    "message.timestamp.after.max.ms",
    "message.timestamp.before.max.ms",
    "min.cleanable.dirty.ratio",
    "min.insync.replicas",
    "retention.bytes",
    "segment.index.bytes",
    "segment.jitter.ms",
    "segment.ms",
    "compression.gzip.level",
    "compression.lz4.level",
    "compression.zstd.level",
)
OTHERS = {
    "cleanup.policy": ("compact", "delete", "compact,delete", "compact, delete", "keep"),
    "compression.type": ("zstd", "producer", "none", "ZSTD"),
    "message.timestamp.type": ("CreateTime", "LogAppendTime", "logappendtime"),
    "preallocate": ("true", "FALSE", "yes"),
    "unclean.leader.election.enable": ("true", "no"),
    "retention.ms": ("-2", "-1", "9223372036854775807", "9223372036854775808"),
    "message.downconversion.enable": ("true", "false", "maybe"),
    "made.up": ("x",),
}


def requests() -> list[Any]:
    configs = [(name, value) for name in NUMBERS for value in VALUES]
    configs += [(name, value) for name, values in OTHERS.items() for value in values]
    return [
        create_topics("made.here_now"),
        create_topics("made.here_now"),
        create_topics("made_here.now", "made-here-now"),
        create_topics("__cluster_metadata"),
        create_topics("__cluster_metadata", validate_only=True),
        create_topics("..", "a/b", "x" * 250),
        create_topics("none", partitions=0),
        create_topics("none", partitions=10_001),
        create_topics("none", "one", partitions=5001),
        create_topics("none", replicas=7),
        create_topics("none", configs={"retention.ms": None}),
        *(create_topics("none", configs={name: value}, validate_only=True) for name, value in configs),
    ]


def told(address: tuple[str, int]) -> list[tuple[str, dict[str, int]]]:
    """What each request asks for, and the error codes of its topics."""
    found = []
    with RawClient(address) as client:
        client.socket.settimeout(SECONDS)
        for request in requests():
            about = ", ".join(f"{config.name}={config.value}" for config in request.topics[0].configs)
            codes = {topic.name: topic.error_code for topic in client.ask(request, VERSION).topics}
            found.append((about, codes))
    return found


def test_topics_when_asked_for_then_are_refused_as_a_broker_refuses_them(
    any_broker: Broker, tmp_path: Path
) -> None:
    host, _, port = any_broker.bootstrap.rpartition(":")
    expected = told((host, int(port)))
    with Served(tmp_path, allow_produce=True) as served:
        found = told(served.address)
    assert [
        (ours, brokers)
        for ours, brokers in zip(found, expected, strict=True)
        if ours != brokers and not (ours[0] in GONE_IN_4 and brokers[1] == {"none": INVALID_CONFIG})
    ] == []
