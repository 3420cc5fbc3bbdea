"""Handlers that mirrors of the tests are told to call."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import kafkafmt as kf

# Raw: a batch and its partition


def keep_large_batches(batch: kf.RecordBatch, partition: kf.TopicPartition) -> kf.RecordBatch | None:
    return batch if batch.count > 1 else None


def rewrite_batches(batch: kf.RecordBatch, partition: kf.TopicPartition) -> bytes:
    """The values in capitals, and not compressed."""
    builder = kf.RecordBatchBuilder()
    for record in batch:
        builder.append(record.timestamp, record.key, record.value and record.value.upper(), record.headers)
    return builder.build()


def fail_behind_200(batch: kf.RecordBatch, partition: kf.TopicPartition) -> kf.RecordBatch:
    if batch.base_offset >= 200:
        raise RuntimeError("no more of this")
    return batch


# Deep: a record and its partition


def keep_even_offsets(record: Any, partition: kf.TopicPartition) -> Any:
    return record if record.offset % 2 == 0 else None


def shout(record: Any, partition: kf.TopicPartition) -> tuple[Any, ...]:
    return record.key, record.value.upper(), record.headers, record.timestamp


def as_it_is(record: Any, partition: kf.TopicPartition) -> Any:
    return record


def wait_at_200(batch: kf.RecordBatch, partition: kf.TopicPartition) -> kf.RecordBatch:
    """Let the batches from offset 200 on wait until the file of this name is there."""
    while batch.base_offset >= 200 and not Path(os.environ["MAY_GO_ON"]).exists():
        time.sleep(0.02)
    return batch
