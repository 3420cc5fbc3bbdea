"""Splitting against Kafka's own ProducerBatch.split, on random batches (KIP-126)."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

import kafkafmt as kf
from oracle.generate import FAMILIES, BatchGenerator, Family, Spec
from oracle.kafka import KafkaOracle

pytestmark = [pytest.mark.oracle, pytest.mark.xdist_group("oracle")]

BATCHES_A_FAMILY = 80
FIELDS = (
    *("magic", "codec", "count", "base_offset", "last_offset", "max_timestamp", "timestamp_type"),
    *("producer_id", "producer_epoch", "base_sequence", "is_transactional", "partition_leader_epoch"),
)
SPLITTABLE = [family for family in FAMILIES if family.magic == 2 or family.codec]


def spec_to_split(generator: BatchGenerator, family: Family) -> Spec:
    random = generator.random
    while True:
        spec = generator.batch(family)
        if len(spec["records"]) > 1 and not spec.get("is_control"):
            break
    spec |= {"op": "split", "codec": family.codec}
    if spec.get("base_sequence", 0) > 2**30:
        spec["base_sequence"] = 2**30  # Kafka's producer does not come to where they wrap
    spec["split_batch_size"] = random.choice((1, 100, 300, 1000, 3000))
    spec["estimated_ratio"] = random.choice((1.0, 0.5, 0.1, 1.3))
    return spec


def readable(batch: kf.RecordBatch) -> dict[str, Any]:
    fields: dict[str, Any] = {name: getattr(batch, name) for name in FIELDS}
    fields["records"] = [(r.offset, r.timestamp, r.key, r.value, r.headers, r.sequence) for r in batch]
    return fields


@pytest.mark.parametrize("family", SPLITTABLE, ids=str)
def test_split_when_kafka_splits_the_batch_then_makes_the_same_parts(
    oracle: KafkaOracle, seed: int, family: Family
) -> None:
    generator = BatchGenerator(Random(f"{seed} split {family}"))
    specs = [spec_to_split(generator, family) for _ in range(BATCHES_A_FAMILY)]
    for spec, answer in zip(specs, oracle.ask(specs), strict=True):
        assert "error" not in answer, (answer, spec)
        (batch,) = kf.MemoryRecords(answer["bytes"]).batches()
        parts = kf.split_batch(batch, spec["split_batch_size"], estimated_ratio=spec["estimated_ratio"])
        wanted = [next(iter(kf.MemoryRecords(part).batches())) for part in answer["parts"]]
        assert [readable(part) for part in parts] == [readable(part) for part in wanted], spec
        if family.codec == kf.Codec.NONE:
            assert [bytes(part) for part in parts] == [bytes(part) for part in wanted], spec
