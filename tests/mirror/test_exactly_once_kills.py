"""`--exactly-once` while the mirror is killed at random points, and the target's broker once: nothing doubled or lost.

KIP-98, "Guarantees"; KIP-447, "Fencing Zombie".
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from client.cluster import Cluster
from mirror.load import Load
from mirror.running import SECONDS, Mirror, address
from mirror.test_exactly_once import exactly_once, numbers, static

pytestmark = [
    pytest.mark.broker,
    pytest.mark.slow,
    pytest.mark.timeout(1200),
    pytest.mark.xdist_group("mirror"),
]

PARTITIONS = 3
RECORDS_A_PAUSE = 3  # so few that the end can be compared soon, however long the loop takes
SHORT_LOOP, LONG_LOOP = 3, 25  # kills of the mirror
QUICKLY = (
    *("--commit-interval", 0.2),
    *("--source-config", "session_timeout_ms=6000", "--source-config", "heartbeat_interval_ms=500"),
    *("--source-config", "reconnect_backoff_max_ms=200", "--target-config", "reconnect_backoff_max_ms=200"),
    *("--source-config", "bootstrap_timeout_ms=60000", "--target-config", "bootstrap_timeout_ms=60000"),
)


@pytest.mark.parametrize(
    ("line", "kills", "is_static"),
    [
        pytest.param("4.x", SHORT_LOOP, True, id="4.x, short"),
        pytest.param("4.x", LONG_LOOP, True, id="4.x, static member", marks=pytest.mark.full),
        pytest.param("3.9", LONG_LOOP, True, id="3.9, static member", marks=pytest.mark.full),
        pytest.param("3.9", LONG_LOOP // 2, False, id="3.9, new member", marks=pytest.mark.full),
    ],
)
def test_mirror_when_it_is_killed_again_and_again_then_each_record_is_there_once(
    clusters: dict[str, Cluster],
    topic: str,
    mirror: Callable[..., Mirror],
    seed: int,
    line: str,
    kills: int,
    is_static: bool,
) -> None:
    """A static member resumes at once, in the same generation. A new member waits until the killed one is given up."""
    source, target = clusters["3.9" if line == "4.x" else "4.x"], clusters[line]
    source.create_topic(topic, PARTITIONS)
    chance = random.Random(seed)
    options = (*exactly_once(topic), *(static(topic) if is_static else ()))
    running = mirror(address(source, topic), address(target), *QUICKLY, *options)
    killed_in_turn: list[Mirror | Cluster] = [running] * kills
    killed_in_turn.insert(chance.randrange(1, kills), target)
    with Load(source, topic, PARTITIONS, RECORDS_A_PAUSE) as load, running:
        for killed in killed_in_turn:
            wait_until_grows(target.broker.log_dir, written(topic, chance), running)
            killed.kill()
            killed.start()
        wait_until_grows(target.broker.log_dir, topic, running)
        running.kill()
    running.start("--once")
    assert running.summary()["possibly_doubled"] == 0
    for partition in range(PARTITIONS):
        assert numbers(target, topic, partition) == [*range(load.sent)]


def written(topic: str, chance: random.Random) -> str:
    """The name of a topic that is written at another point of a transaction each: records, the map, begin and end."""
    return chance.choice([topic, f"{topic}-map", "__transaction_state"])


def wait_until_grows(logs: Path, topic: str, running: Mirror) -> None:
    """Return as soon as bytes are written to a topic."""
    before, deadline = size_of(logs, topic), time.monotonic() + SECONDS
    while size_of(logs, topic) <= before:
        assert running.is_running, running.tail
        if time.monotonic() > deadline:
            raise TimeoutError(f"{topic} did not grow in {SECONDS} s:\n{running.tail}")
        time.sleep(0.002)


def size_of(logs: Path, topic: str) -> int:
    return sum(path.stat().st_size for path in logs.glob(f"{topic}-[0-9]*/0*.log"))
