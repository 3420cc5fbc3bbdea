"""The size that a batch is estimated at while it is filled, by Kafka's MemoryRecordsBuilder and by ours (KIP-126)."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

import kafkafmt as kf
from oracle.kafka import KafkaOracle

pytestmark = [pytest.mark.oracle, pytest.mark.xdist_group("oracle")]

CASES = 2_000


def estimates(spec: dict[str, Any]) -> list[int]:
    builder = kf.RecordBatchBuilder(
        spec["magic"],
        kf.Codec(spec["codec"]),
        batch_size=spec["batch_size"],
        estimated_ratio=spec["estimated_ratio"],
        capacity=1 << 16,
    )
    sizes = []
    for size in spec["value_sizes"]:
        if not builder.try_append(0, None, bytes(size)):
            break
        sizes.append(builder.estimated_size)
    return sizes


def test_estimated_size_when_records_are_appended_then_it_is_kafkas(oracle: KafkaOracle, seed: int) -> None:
    random = Random(f"{seed} estimates")
    specs = [{"magic": 2, "codec": 3, "batch_size": 257, "estimated_ratio": 1.2, "value_sizes": [141, 1, 1]}]
    for _ in range(CASES):
        magic = random.randrange(3)
        specs.append(
            {
                "magic": magic,
                "codec": random.randrange(4 if magic < 2 else 5),
                "batch_size": random.choice((100, 257, 1000, 5000)),
                "estimated_ratio": random.choice((1.2, 1.0, 0.1, random.random() * 1.5)),
                "value_sizes": [random.choice((0, 1, 7, 141, random.randrange(400))) for _ in range(20)],
            }
        )
    answers = oracle.ask([{"op": "estimate", **spec} for spec in specs])
    for spec, answer in zip(specs, answers, strict=True):
        assert estimates(spec) == answer["sizes"], spec
