"""Segments that have offsets of segments before them: each offset is returned once, as in `kafkafmt.log.overlaps`."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import kafkafmt as kf
from _kafkafmt.batches.scan import BatchRun
from _kafkafmt.records.decode import Record
from cli.logs import run
from kafkafmt.records.runs import whole_batches
from kafkafmt.streams import PartitionGroup
from kafkafmt.types import TopicPartition
from log.samples import DAY, batch, put_segment

PARTITION = TopicPartition("t", 0)
KINDS = pytest.mark.parametrize(
    ("magic", "codec"),
    [(2, kf.Codec.NONE), (2, kf.Codec.LZ4), (1, kf.Codec.NONE), (1, kf.Codec.GZIP)],
)


@KINDS
@pytest.mark.parametrize("merges", [False, True])
def test_records_when_a_run_begins_within_the_batch_before_it_then_each_comes_once(
    magic: int, codec: kf.Codec, merges: bool
) -> None:
    group = PartitionGroup("1m", least_bytes="64k")
    group.add(PARTITION)
    other = TopicPartition("u", 0)
    if merges:
        group.add(other)
        group.feed(other, whole_batches(batch(0, 1, timestamp=DAY + 8)))
        group.finish(other)
    for first in (0, 7):
        group.feed(PARTITION, whole_batches(batch(first, 10, magic=magic, codec=codec)))
    group.finish(PARTITION)
    found = []
    while (taken := group.pop()) is not None:
        if taken[0] == PARTITION:
            found.append(taken[1].offset)
    assert found == list(range(17))
    assert group.offset(PARTITION) == 17


def incompressible(first: int, **options: Any) -> BatchRun:
    builder = kf.RecordBatchBuilder(base_offset=first, **options)
    for number in range(10):
        builder.append(DAY + first + number, None, random.Random(number).randbytes(6000))
    return whole_batches(builder.build())


@pytest.mark.parametrize(
    ("magic", "codec"), [(2, kf.Codec.NONE), (2, kf.Codec.LZ4), (1, kf.Codec.GZIP)], ids=str
)
def test_records_when_their_batch_had_no_room_until_the_others_were_taken_then_all_come(
    magic: int, codec: kf.Codec
) -> None:
    """A reader that continues after a gap passes over offsets up to the last one of the next batch: the header of a
    wrapper has no other."""
    group = PartitionGroup("100k", least_bytes="64k")
    group.add(PARTITION)
    first, second = (incompressible(offset, magic=magic, codec=codec) for offset in (0, 10))
    assert group.feed(PARTITION, first) == 1
    group.pass_over(PARTITION, 19)
    assert group.feed(PARTITION, second) == 0
    offsets = [record.offset for record in popped(group)]
    assert group.offset(PARTITION) == 10
    assert group.feed(PARTITION, second) == 1
    offsets += [record.offset for record in popped(group)]
    assert offsets == list(range(20))


def popped(group: PartitionGroup) -> Iterator[Record]:
    while (taken := group.pop()) is not None:
        yield taken[1]


@KINDS
@pytest.mark.parametrize("order", [(), ("--by-time",)])
def test_replay_when_segments_overlap_within_a_batch_then_each_record_comes_once(
    tmp_path: Path, magic: int, codec: kf.Codec, order: tuple[str, ...]
) -> None:
    for first in (0, 7):
        put_segment(tmp_path / "logs" / "t-0", first, [batch(first, 10, magic=magic, codec=codec)])
    result = run("replay", tmp_path / "logs", *order)
    assert result.exit_code == 0
    assert [json.loads(line)["offset"] for line in result.stdout.splitlines()] == list(range(17))
