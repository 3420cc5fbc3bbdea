"""`make bench` measures producers and consumers of a broker: of too few records to say anything by it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("bench", reason="run from the root, where bench/ is")

from bench.clients import PROCESSOR, RATE, Result, Target, take_turns

ROOT = Path(__file__).resolve().parents[2]
needs_broker = [pytest.mark.broker, pytest.mark.full, pytest.mark.slow]


def answer(seconds: float, processor_seconds: float = 1.0) -> dict[str, Any]:
    return {"count": 1_000_000, "seconds": seconds, "processor_seconds": processor_seconds}


def verdict(target: Target, **seconds: float) -> str:
    return Result("row", (target,), {name: answer(taken) for name, taken in seconds.items()}).verdict(target)


def test_verdict_when_the_rate_is_as_wanted_then_it_is_a_hit() -> None:
    assert verdict(Target(RATE, 3, "peer"), ours=1, peer=3) == "hit"
    assert verdict(Target(RATE, 3, "peer"), ours=1, peer=2.9) == "MISSED"


def test_verdict_when_the_floor_is_too_slow_then_it_says_so() -> None:
    assert verdict(Target(RATE, 10, "peer"), ours=1, peer=4, floor=0.5) == "MISSED, by the floor too"


def test_verdict_when_a_contender_is_missing_then_there_is_none() -> None:
    assert verdict(Target(RATE, 3, "peer"), peer=3) == "not measured"


def test_verdict_when_ours_takes_more_of_the_processor_then_it_is_missed() -> None:
    target = Target(PROCESSOR, 1, "peer")
    found = {"ours": answer(1, processor_seconds=1.1), "peer": answer(1, processor_seconds=1.0)}
    assert Result("row", (target,), found).verdict(target) == "MISSED"


def test_turns_when_taken_then_their_order_changes() -> None:
    asked: list[str] = []
    take_turns({"one": 2, "two": 2, "slow": 1}, lambda name, _: asked.append(name))
    assert asked == ["one", "two", "slow", "two", "one"]


@pytest.mark.parametrize(
    ("rows", "kind", "contenders"),
    [
        pytest.param(
            "producer: send to a broker, lz4, 100 B",
            "producer",
            {"ours", "kafka-python", "librdkafka"},
            marks=needs_broker,
        ),
        pytest.param(
            "consumer: RawConsumer, lz4, 100 B",
            "consumer",
            {"ours", "kafka-python", "confluent-kafka", "floor"},
            marks=needs_broker,
        ),
    ],
)
def test_the_benchmark_has_a_figure_of_every_contender(
    rows: str, kind: str, contenders: set[str], tmp_path: Path
) -> None:
    found = tmp_path / "found.json"
    arguments = "-k", rows, "--sent", "1", "--consumed", "8", "--json", str(found)
    done = subprocess.run(
        [sys.executable, "-m", "bench.compare", *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    row = json.loads(found.read_text())["measured"][kind][0]
    assert row["measured"].keys() == contenders
