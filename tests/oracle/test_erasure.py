"""Records that are erased leave the batches that Kafka's log cleaner would leave (MemoryRecords.filterTo)."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

import reference as ref
from _kafkafmt.batches.scan import scan
from _kafkafmt.records.key_table import KeySet
from kafkafmt.jobs.erase import EraseOptions
from kafkafmt.jobs.erase.batches import BatchEraser
from oracle.generate import FAMILIES, BatchGenerator, Family, Spec
from oracle.kafka import KafkaOracle, filter_request

pytestmark = [pytest.mark.oracle, pytest.mark.xdist_group("oracle")]

BATCHES_A_FAMILY = 25


def without_tombstones(spec: Spec) -> Spec:
    """The cleaner gives a batch with tombstones a delete horizon. That is compaction, and no part of erasure."""
    if spec["magic"] == 2 and "delete_horizon_ms" not in spec:
        for record in spec["records"]:
            if record.get("value", b"") is None:
                record["value"] = b""
    return spec


def erased(data: bytes, keys: list[bytes]) -> bytes:
    run, consumed, *_ = scan(data)
    assert consumed == len(data)
    kept_empty = {int(row["position"]) for row in run.index if row["magic"] == 2 and row["producer_id"] >= 0}
    select = EraseOptions(KeySet(keys)).selector(None)
    return bytes(BatchEraser(select, None, kept_empty.__contains__, 2**28).erase(run))


def comparable(batches: list[dict[str, Any]], *, is_compressed: bool) -> list[dict[str, Any]]:
    left_out = {"size_in_bytes", "crc", "checksum"} if is_compressed else set()
    return [{name: value for name, value in batch.items() if name not in left_out} for batch in batches]


@pytest.mark.parametrize("family", FAMILIES, ids=str)
def test_batches_when_keys_are_erased_then_they_are_those_of_the_log_cleaner(
    oracle: KafkaOracle, seed: int, family: Family
) -> None:
    random = Random(f"{seed} {family}")
    generator = BatchGenerator(random)
    specs = [without_tombstones(generator.batch(family)) for _ in range(BATCHES_A_FAMILY)]
    built = [answer["bytes"] for answer in oracle.ask(specs)]
    asked, ours = [], []
    for data in built:
        keys = [row.key for batch in ref.read(data) for row in batch.rows() if row.key is not None]
        chosen = random.sample(keys, random.choice((0, 1, len(keys) // 2, len(keys))) if keys else 0)
        asked.append(filter_request(data, chosen))
        ours.append(erased(data, chosen))
    assert any(one != data for one, data in zip(ours, built, strict=True))
    for request, answer, found in zip(asked, oracle.ask(asked), ours, strict=True):
        if family.codec == ref.NONE:
            assert found == answer["bytes"], request
        else:
            decoded = [
                comparable(oracle.decode(data), is_compressed=True) for data in (found, answer["bytes"])
            ]
            assert decoded[0] == decoded[1], request
