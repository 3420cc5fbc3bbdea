"""What a builder refuses to build, by Kafka's MemoryRecordsBuilder and by ours."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

import kafkafmt as kf
from oracle.kafka import KafkaOracle

pytestmark = [pytest.mark.oracle, pytest.mark.xdist_group("oracle")]

DAY = 1_700_000_000_000


def specs() -> list[dict[str, Any]]:
    """Every mix of formats, timestamp types and producer states, with a record or a marker in it."""
    found = []
    for magic, kind, producer_id, epoch, sequence, is_transactional, is_control in product(
        (0, 1, 2), (-1, 0, 1), (-1, 5), (-1, 0), (-1, 0), (False, True), (False, True)
    ):
        # Kafka ignores an append time in v0, and an epoch and a sequence below v2. Ours refuses them.
        if (magic, kind) == (0, 1) or (magic < 2 and (epoch, sequence) != (-1, -1)):
            continue
        found.append(
            {
                "magic": magic,
                "timestamp_type": kind,
                "producer_id": producer_id,
                "producer_epoch": epoch,
                "base_sequence": sequence,
                "is_transactional": is_transactional,
                "is_control": is_control,
            }
            | ({"log_append_time": DAY} if kind == 1 else {})
        )
    return found


def built(spec: dict[str, Any]) -> bytes | None:
    """The batch; None if the builder refuses it."""
    try:
        builder = kf.RecordBatchBuilder(**spec)
        if spec["is_control"]:
            builder.append_end_transaction_marker(DAY, commit=True)
        else:
            builder.append(DAY, b"key", b"value")
    except ValueError:
        return None
    return builder.build()


def test_builder_when_state_is_none_that_a_batch_has_then_refused_as_kafka_does(oracle: KafkaOracle) -> None:
    marker: dict[str, Any] = {"timestamp": DAY, "marker": "COMMIT"}
    record = {"offset": 0, "timestamp": DAY, "key": b"key", "value": b"value"}
    wanted = specs()
    answers = oracle.ask(
        [{"op": "build", "records": [marker if spec["is_control"] else record], **spec} for spec in wanted]
    )
    refused = 0
    for spec, answer in zip(wanted, answers, strict=True):
        if "error" in answer:
            assert answer["error"] == "IllegalArgumentException", (spec, answer)
            refused += 1
        assert built(spec) == answer.get("bytes"), (spec, answer)
    assert 0 < refused < len(wanted)
