"""Heartbeats as MirrorMaker 2 writes them: KIP-382, "Internal Topics", and its `Heartbeat.java`."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

import pytest

from client.cluster import Cluster
from mirror.reading import Reader, end_of
from mirror.running import QUICKLY, Mirror, address, wait_until

pytestmark = [pytest.mark.broker, pytest.mark.xdist_group("mirror")]

MakeMirror = Callable[..., Mirror]
EAST, WEST = "east", "west"


class Heartbeat(NamedTuple):
    source: str
    target: str
    timestamp: int


def parsed(key: bytes, value: bytes) -> Heartbeat:
    """As `Heartbeat.deserializeRecord`: a key of two STRINGs; a value of INT16 version and INT64 timestamp."""
    length = int.from_bytes(key[:2], "big")
    source, rest = key[2 : 2 + length].decode(), key[2 + length :]
    length = int.from_bytes(rest[:2], "big")
    target, rest = rest[2 : 2 + length].decode(), rest[2 + length :]
    assert rest == b""
    assert value[:2] == b"\0\0", "version 0"
    assert len(value) == 10
    return Heartbeat(source, target, int.from_bytes(value[2:], "big"))


def heartbeats(cluster: Cluster, topic: str) -> list[Heartbeat]:
    with Reader(cluster.bootstrap) as reader:
        return [parsed(read.key or b"", read.value or b"") for read in reader.records(topic)]


def test_heartbeats_when_a_mirror_runs_then_are_at_both_sides_and_pass_through_it_as_with_mm2(
    old: Cluster, new: Cluster, topic: str, mirror: MakeMirror
) -> None:
    old.create_topic(topic)
    began = time.time() * 1000
    options = ("--heartbeats", f"{EAST},{WEST}", "--heartbeat-interval", 0.2)
    with mirror(address(old, topic), address(new), *QUICKLY, *options) as running:
        remote = f"{EAST}.heartbeats"
        wait_until(lambda: end_of(new.broker.log_dir, remote) >= 2, running)
        wait_until(lambda: end_of(new.broker.log_dir, "heartbeats") >= 2, running)
        summary = running.stop()
    assert summary["topics"]["heartbeats"] == remote
    through, at_target = heartbeats(new, remote), heartbeats(new, "heartbeats")
    assert {one[:2] for one in through} == {(WEST, EAST)}
    assert {one[:2] for one in at_target} == {(EAST, WEST)}
    assert heartbeats(old, "heartbeats")[-1].timestamp >= through[-1].timestamp
    for written in (through, at_target):
        assert began <= written[0].timestamp <= written[-1].timestamp <= time.time() * 1000
