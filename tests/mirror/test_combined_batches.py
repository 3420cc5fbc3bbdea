"""Small batches that are combined, into endpoints that say that they take one batch of a partition in a request.

Here the source's offsets have gaps, as compaction and transactions leave them. Each record says its number, and has a
place in the offset map.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import kafkafmt as kf
from endpoints.endpoint_process import EndpointProcess
from kafkafmt.log import LogDirectory
from kafkafmt.log.checkpoints import LOG_START_OFFSET_CHECKPOINT, log_start_offsets_to_bytes
from kafkafmt.log.partition_metadata import write_topic_id
from kafkafmt.mirror.offset_map import PartitionMap
from kafkafmt.mirror.offset_stores import FileOffsetMapStore
from kafkafmt.net import Producer
from kafkafmt.types import TopicPartition
from log.samples import marker
from mirror.folders import NOW, one_batch_a_request, put_log, stopped
from mirror.folders import mirror as run_mirror
from mirror.load import doubled, numbers_of
from mirror.reading import end_of
from mirror.running import Mirror, address, metrics_of, wait_until
from mirror.test_kills import counted_doubles
from mirror.test_recreated_topics import NEW, OLD

pytestmark = [pytest.mark.clients, pytest.mark.slow]

MakeMirror = Callable[..., Mirror]
PARTITION = TopicPartition("t", 0)
KILLS = 3


class Written(NamedTuple):
    """Batches, the offset of each record in them, by its number, and the offset after them."""

    batches: list[bytes]
    offsets: list[int]
    end: int


def gappy(count: int, first_number: int = 0, first_offset: int = 0, *, seed: int = 1) -> Written:
    """Small batches with gaps within them, at their ends and between them, with markers, and of two codecs."""
    chance = random.Random(seed)
    offset, written, offsets = first_offset, [], []
    for number in range(count):
        codec = kf.Codec.LZ4 if number // 10 % 3 == 2 else kf.Codec.NONE
        base_offset = offset
        records = []
        for _ in range(chance.randrange(1, 6)):
            offset += chance.choice([0, 0, 0, 1, 7])
            records.append(offset)
            offset += 1
        offset += chance.choice([0, 0, 3])
        builder = kf.RecordBatchBuilder(codec=codec, base_offset=base_offset, last_offset=offset - 1)
        for one in records:
            value = b"%d " % (first_number + len(offsets)) + bytes(20)
            builder.append_with_offset(one, NOW + one, b"key-%d" % (one % 7), value)
            offsets.append(one)
        written.append(builder.build())
        if chance.random() < 0.1:
            written.append(marker(offset, 7, commit=True))
            offset += 1
    return Written(written, offsets, offset)


@pytest.fixture
def west(tmp_path: Path) -> Iterator[str]:
    one_batch_a_request(tmp_path / "west")
    with EndpointProcess(tmp_path / "west", "--allow-produce", log=tmp_path / "west.log") as running:
        yield running.address


def arrived(directory: Path) -> list[tuple[int, int]]:
    """The number and the offset of each record, in the order of the log; none of other producers."""
    found = [(r.value, r.offset) for r in LogDirectory(directory).partition(PARTITION).records()]
    return [(int(value.split()[0]), offset) for value, offset in found if value and value[:1].isdigit()]


def map_in(path: Path, source: Path) -> PartitionMap:
    store = FileOffsetMapStore(path, str(source.resolve()))
    try:
        return PartitionMap(store.load(PARTITION))
    finally:
        store.close()


def assert_each_has_its_place(offsets: PartitionMap, written: Written, target: Path) -> None:
    """At each offset of the source: a consumer that continues at the target misses no record, and reads none twice."""
    at_target = dict(arrived(target))
    assert len(at_target) == len(written.offsets)
    number = 0
    for source_offset in range(written.end):
        while number < len(written.offsets) and written.offsets[number] < source_offset:
            number += 1
        found = offsets.look_up(source_offset)
        assert found is not None
        assert [one for one in at_target if at_target[one] >= found] == list(range(number, len(at_target)))


def assert_combined(summary: dict[str, Any]) -> None:
    assert summary["ways"]["combined"]["batches"] > summary["combined_into"] > 0


# The offset map


def test_offset_map_when_combined_batches_had_gaps_then_has_the_place_of_each_record(
    west: str, tmp_path: Path
) -> None:
    """Between two runs an application wrote to the target, so that no offset is as in the source."""
    source, kept_in = tmp_path / "east", tmp_path / "offsets.db"
    options = ("--adaptive", "--offset-map", kept_in)
    first = gappy(100)
    put_log(source / "t-0", first.batches)
    ended = run_mirror(source, address(west), *options)
    assert ended.summary["records"] == len(first.offsets)
    assert_combined(ended.summary)
    assert_each_has_its_place(map_in(kept_in, source), first, tmp_path / "west")

    with Producer(bootstrap_servers=west) as producer:
        producer.send("t", b"theirs", partition=0)
    more = gappy(100, len(first.offsets), first.end, seed=2)
    put_log(source / "t-0", more.batches)
    refused = run_mirror(source, address(west), *options)
    assert (refused.status, refused.summary["records"]) == (1, 0)
    assert "expected no record there, or --append" in refused.summary["stopped"][0]["message"]
    appended = run_mirror(source, address(west), *options, "--append")
    assert appended.summary["records"] == len(more.offsets)
    assert_combined(appended.summary)
    both = Written([], first.offsets + more.offsets, more.end)
    assert [number for number, _ in arrived(tmp_path / "west")] == list(range(len(both.offsets)))
    assert_each_has_its_place(map_in(kept_in, source), both, tmp_path / "west")
    again = run_mirror(source, address(west), *options)
    assert (again.status, again.summary["batches"]) == (0, 0)


def test_offsets_when_they_were_deleted_within_a_batch_to_combine_then_the_others_arrive(
    west: str, tmp_path: Path
) -> None:
    source, kept_in = tmp_path / "east", tmp_path / "offsets.db"
    options = ("--adaptive", "--offset-map", kept_in)
    written = gappy(60)
    start = next(
        one
        for one, following in zip(written.offsets, written.offsets[1:], strict=False)
        if one > 40 and following == one + 1
    )
    put_log(source / "t-0", written.batches)
    entries = {PARTITION: start + 1}  # the first one of the batch is gone
    (source / LOG_START_OFFSET_CHECKPOINT).write_bytes(log_start_offsets_to_bytes(entries))
    ended = run_mirror(source, address(west), *options)
    assert_combined(ended.summary)
    assert ended.summary["gone"] == []
    wanted = [number for number, offset in enumerate(written.offsets) if offset > start]
    found = [number for number, _ in arrived(tmp_path / "west")]
    assert found[-len(wanted) :] == wanted
    assert map_in(kept_in, source).look_up(written.offsets[-1]) == arrived(tmp_path / "west")[-1][1]


@pytest.mark.full
@pytest.mark.parametrize("recreated_at", ["source", "target"])
def test_recreated_topic_when_batches_were_combined_then_is_never_spliced(
    tmp_path: Path, recreated_at: str
) -> None:
    source, target, kept_in = tmp_path / "east", tmp_path / "west", tmp_path / "offsets.db"
    options = ("--adaptive", "--offset-map", kept_in)
    one_batch_a_request(target)
    written = gappy(60)
    write_topic_id(put_log(source / "t-0", written.batches), OLD)
    serve = ("--allow-produce",)
    with EndpointProcess(target, *serve, log=tmp_path / "west.log") as endpoint:
        assert_combined(run_mirror(source, address(endpoint.address), *options).summary)
    write_topic_id((source if recreated_at == "source" else target) / "t-0", NEW)
    again = "--restart-recreated" if recreated_at == "source" else "--append"
    with EndpointProcess(target, *serve, log=tmp_path / "west.log") as endpoint:
        refused = run_mirror(source, address(endpoint.address), *options)
        assert (refused.status, stopped(refused.summary)) == (1, {"t-0": 0})
        assert end_of(target, "t") == len(written.offsets)
        restarted = run_mirror(source, address(endpoint.address), *options, again)
    assert_combined(restarted.summary)
    assert [number for number, _ in arrived(target)] == 2 * list(range(len(written.offsets)))
    ends = map_in(kept_in, source)
    assert (ends.end, ends.target_end) == (written.offsets[-1] + 1, 2 * len(written.offsets))


# Kills


@pytest.mark.full
def test_mirror_when_it_is_killed_while_it_combines_then_loses_nothing_and_counts_what_may_be_doubled(
    west: str, tmp_path: Path, mirror: MakeMirror, seed: int
) -> None:
    """It sends hundreds of batches of 1 KiB at most. Each kill is at any time after some more have arrived."""
    source, target = tmp_path / "east", tmp_path / "west"
    written = gappy(3_000)
    put_log(source / "t-0", written.batches, segment_bytes=1 << 20)
    chance = random.Random(seed)
    options = ("--adaptive", "--batch-size", "1K", "--commit-interval", 0.1)
    killed = mirror(source, address(west), "--follow", *options)
    reached = 0
    with killed:
        for _ in range(KILLS):
            goal = min(reached + chance.randrange(1, len(written.offsets) // KILLS), len(written.offsets))
            wait_until(lambda goal=goal: end_of(target, "t") >= goal, killed)
            killed.kill()
            reached = max(end_of(target, "t"), 0)
            killed.start()
        wait_until(lambda: numbers_to_come(target, written) == 0, killed)
        summary = killed.stop()
    assert summary["stopped"] == []
    numbers = [number for number, _ in arrived(target)]
    assert doubled(numbers, len(written.offsets)) <= counted_doubles(killed.said)


def numbers_to_come(target: Path, written: Written) -> int:
    last = next(iter(reversed(list(LogDirectory(target).partition(PARTITION).batches()))), None)
    if last is None:
        return len(written.offsets)
    return len(written.offsets) - 1 - numbers_of([record.value for record in last][-1:])[0]


# What is counted


def test_summary_and_metrics_when_batches_go_several_ways_then_count_what_each_log_has(
    west: str, tmp_path: Path, mirror: MakeMirror
) -> None:
    source, target = tmp_path / "east", tmp_path / "west"
    small = gappy(50)
    large = [
        large_batch(small.end, len(small.offsets)),
        large_batch(
            small.end + 1,
            len(small.offsets) + 1,
            timestamp_type=kf.TimestampType.LOG_APPEND_TIME,
            log_append_time=NOW,
        ),
    ]
    more = gappy(30, len(small.offsets) + 2, small.end + 2, seed=2)
    alone = large_batch(more.end, len(small.offsets) + 2 + len(more.offsets))
    data = [*small.batches, *large, *more.batches, alone]
    put_log(source / "t-0", data)
    running = mirror(source, address(west), "--follow", "--adaptive", "--metrics-port", 0)
    records = len(small.offsets) + len(more.offsets) + 3
    with running:
        wait_until(lambda: end_of(target, "t") == records, running)
        wait_until(lambda: f'way_records_total{{way="raw"}} {2}.0' in metrics_of(running), running)
        told = metrics_of(running)
        summary = running.stop()

    at_source = list(kf.MemoryRecords(b"".join(data)).batches())
    at_target = list(LogDirectory(target).partition(PARTITION).batches())
    controls = [one for one in at_source if one.is_control]
    of_way = {
        "raw": [at_source[-1], by_offset(at_source, small.end)],
        "opened": [by_offset(at_source, small.end + 1)],
    }
    passed = {one.base_offset for one in (*controls, *of_way["raw"], *of_way["opened"])}
    of_way["combined"] = [one for one in at_source if one.base_offset not in passed]
    of_way["deep"] = []
    for way, expected in of_way.items():
        counts = {
            "batches": len(expected),
            "records": sum(one.count for one in expected),
            "bytes": sum(one.size_in_bytes for one in expected),
        }
        assert summary["ways"][way] == counts, way
        for name, count in counts.items():
            assert f'kafkafmt_mirror_way_{name}_total{{way="{way}"}} {float(count)}\n' in told
    assert summary["combined_into"] == len(at_target) - 3
    assert f"kafkafmt_mirror_combined_into_batches_total {float(len(at_target) - 3)}\n" in told
    assert sum(one.count for one in at_target) == records


def large_batch(offset: int, number: int, **options: Any) -> bytes:
    builder = kf.RecordBatchBuilder(base_offset=offset, **options)
    builder.append(NOW, b"key", b"%d " % number + bytes(70_000))
    return builder.build()


def by_offset(batches: list[kf.RecordBatch], offset: int) -> kf.RecordBatch:
    (found,) = [one for one in batches if one.base_offset == offset]
    return found
