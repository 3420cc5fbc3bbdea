"""The merge hands out what the slow obvious merge does, whatever comes and goes meanwhile, within its budget."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

import kafkafmt as kf
import reference as ref
from file_limits import free_descriptors
from jobs.logs import LogMaker, Row, make_logs, merged
from kafkafmt.errors import CorruptRecordError
from kafkafmt.jobs.memory import plan_for
from kafkafmt.jobs.partition_readers import READER_BYTES, PartitionReaders, select_logs
from kafkafmt.jobs.replay import Merge
from kafkafmt.log import PartitionLogWriter
from kafkafmt.log.gaps import OffsetsGone, SourceDamage
from kafkafmt.memory import MemoryBudget, MemoryPlan, MemoryPlanError
from kafkafmt.streams import Merged
from kafkafmt.types import TopicPartition
from log.samples import put_segment


def plan_of(total_bytes: int | str = "4m") -> MemoryPlan:
    return MemoryPlan(total_bytes, producer_bytes=0, consumer_bytes=READER_BYTES, least_batch_bytes=1024)


def rows_of(merged: Merged) -> list[tuple[TopicPartition, Row]]:
    return [
        (
            taken.topic_partition,
            Row(
                record.offset,
                record.timestamp,
                int(record.timestamp_type),
                record.key,
                record.value,
                tuple(record.headers),
            ),
        )
        for taken in merged.runs()
        for record in taken.records()
    ]


def all_of(merge: Merge) -> list[tuple[TopicPartition, Row]]:
    found = []
    while (taken := merge.take()) is not None:
        found += rows_of(taken)
    return found


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("is_committed", [True, False])
def test_take_when_logs_are_of_every_kind_then_is_what_the_obvious_merge_takes(
    tmp_path: Path, seed: int, is_committed: bool
) -> None:
    logs = make_logs(tmp_path, seed=seed, topics=("a", "b"))
    readers = PartitionReaders(select_logs(tmp_path), is_committed=is_committed)
    with Merge(readers, plan_of()) as merge:
        merge.assign(merge.partitions)
        found = all_of(merge)
    seen = {tp: log.committed if is_committed else log.every for tp, log in logs.items()}
    assert found == list(merged(seen))


def test_take_when_whoever_is_asked_for_memory_raises_then_the_next_one_has_all_that_is_left(
    tmp_path: Path,
) -> None:
    logs = {tp: log.committed for tp, log in make_logs(tmp_path).items()}
    plan = plan_of()
    budget = MemoryBudget(plan.thread_bytes)

    def refuse(wanted_bytes: int) -> None:
        raise OSError(f"{wanted_bytes} bytes are not given back")

    forget = budget.on_pressure(refuse)
    with Merge(PartitionReaders(select_logs(tmp_path)), plan, budget=budget) as merge:
        merge.assign(merge.partitions)
        with (
            budget.reserve(budget.available_bytes - 10_000),
            pytest.raises(OSError, match="are not given back"),
        ):
            merge.take()
        forget()
        assert all_of(merge) == list(merged(logs))
    assert budget.held_bytes == 0


def large_record(codec: kf.Codec, magic: int = 2) -> bytes:
    builder = kf.RecordBatchBuilder(magic, codec)
    builder.append(1_000, b"k", bytes(3 << 20))
    return bytes(builder.build())


@pytest.mark.parametrize(
    ("codec", "magic"), [(kf.Codec.NONE, 2), (kf.Codec.ZSTD, 2), (kf.Codec.GZIP, 2), (kf.Codec.GZIP, 1)]
)
def test_take_when_a_record_is_too_large_for_the_memory_then_the_error_names_a_total_that_suffices(
    tmp_path: Path, codec: kf.Codec, magic: int
) -> None:
    put_segment(tmp_path / "t-0", 0, [large_record(codec, magic)])
    with Merge(PartitionReaders(select_logs(tmp_path)), plan_for(16 << 20, 1)) as merge:
        merge.assign(merge.partitions)
        with pytest.raises(MemoryPlanError, match=r"t-0 at offset 0, position 0: \d+ bytes") as caught:
            merge.take()
    least = caught.value.least_total_bytes
    with Merge(PartitionReaders(select_logs(tmp_path)), plan_for(least, 1)) as merge:
        merge.assign(merge.partitions)
        assert len(all_of(merge)) == 1
        assert 16 * (3 << 20) < merge.peak_bytes <= least


def test_plan_when_no_log_has_a_large_batch_then_needs_less_for_each_partition() -> None:
    assert plan_for(256 << 20, 3_000, largest_log_bytes=107).total_bytes == 256 << 20
    with pytest.raises(MemoryPlanError, match="a batch of up to 1048588 bytes of each of 3000 partitions"):
        plan_for(256 << 20, 3_000, largest_log_bytes=1 << 30)


def test_take_when_there_are_more_partitions_than_files_may_be_open_then_takes_all(tmp_path: Path) -> None:
    expected = []
    for number in range(60):
        batch = ref.batch_of([ref.Row(0, 1_000 + number, b"k", b"v"), ref.Row(1, 2_000 + number, b"k", b"v")])
        put_segment(tmp_path / f"t-{number}", 0, [batch])
        expected += [(1_000 + number, number), (2_000 + number, number)]
    with (
        free_descriptors(40),
        Merge(PartitionReaders(select_logs(tmp_path), most_open=10), plan_of("64m")) as merge,
    ):
        merge.assign(merge.partitions)
        found = [(row.timestamp, one.partition) for one, row in all_of(merge)]
    assert found == sorted(expected)


@pytest.mark.parametrize("seed", range(4))
def test_take_when_partitions_come_and_go_then_goes_on_where_each_was(tmp_path: Path, seed: int) -> None:
    logs = {tp: log.committed for tp, log in make_logs(tmp_path, seed=seed, partitions=6).items()}
    rng = random.Random(seed)
    positions = dict.fromkeys(logs, 0)
    with Merge(PartitionReaders(select_logs(tmp_path)), plan_of()) as merge:
        while any(positions[tp] < len(logs[tp]) for tp in logs):
            chosen = set(rng.sample(sorted(logs), rng.randrange(1, 7)))
            merge.revoke(set(merge.assigned) - chosen)
            merge.assign(chosen)
            left = {tp: logs[tp][positions[tp] :] for tp in chosen}
            found = []
            while len(found) < 50 and (taken := merge.take(rng.choice([None, 1, 7]))) is not None:
                found += rows_of(taken)
            expected = merged(left)
            assert found == [one for one, _ in zip(expected, found, strict=False)]
            for topic_partition, _ in found:
                positions[topic_partition] += 1


def test_assign_when_partitions_come_then_all_share_what_there_is(tmp_path: Path) -> None:
    make_logs(tmp_path, partitions=6)
    with Merge(PartitionReaders(select_logs(tmp_path)), plan_of()) as merge:
        first = merge.assign(merge.partitions[:2])
        second = merge.assign(merge.partitions)
        third = merge.revoke(merge.partitions[1:])
    plans = [first, second, third]
    assert [plan.partitions for plan in plans] == [2, 6, 1]
    assert (
        third.buffered_bytes_per_partition
        > first.buffered_bytes_per_partition
        > (second.buffered_bytes_per_partition)
    )
    assert all(plan.buffer_bytes <= plan.thread_bytes for plan in plans)


def test_assign_when_there_is_no_memory_for_a_batch_of_each_then_says_the_least(tmp_path: Path) -> None:
    make_logs(tmp_path, partitions=6)
    plan = MemoryPlan("4m", producer_bytes=0, consumer_bytes=READER_BYTES)
    with Merge(PartitionReaders(select_logs(tmp_path)), plan) as merge:
        with pytest.raises(MemoryPlanError, match="6 partitions") as error:
            merge.assign(merge.partitions)
        assert merge.assigned == []
        merge.assign(merge.partitions[:1])
    assert error.value.least_total_bytes > plan.total_bytes


def test_close_when_all_was_taken_or_not_then_gives_all_memory_back(tmp_path: Path) -> None:
    make_logs(tmp_path)
    merge = Merge(PartitionReaders(select_logs(tmp_path)), plan_of())
    merge.assign(merge.partitions)
    assert merge.take() is not None
    assert merge.budget.held_bytes > READER_BYTES
    merge.close()
    assert merge.budget.held_bytes == 0
    assert merge.budget.peak_bytes <= merge.budget.total_bytes


def damaged(folder: Path) -> tuple[LogMaker, LogMaker]:
    """Two logs; of the first, in the middle, a batch has another byte than was written."""
    first, second = (LogMaker(folder / f"t-{number}", random.Random(number), 10**6) for number in (0, 1))
    for _ in range(10):
        first.plain(2, 10)
        second.plain(2, 10)
    sizes = [len(batch) for batch in first.batches]
    first.write()
    second.write()
    (path,) = first.folder.glob("*.log")
    data = bytearray(path.read_bytes())
    data[sum(sizes[:5]) - 1] ^= 0xFF
    path.write_bytes(data)
    return first, second


def test_take_when_a_batch_is_damaged_then_stops_there_and_names_the_partition(tmp_path: Path) -> None:
    first, _ = damaged(tmp_path)
    with Merge(PartitionReaders(select_logs(tmp_path)), plan_of()) as merge:
        merge.assign(merge.partitions)
        with pytest.raises(CorruptRecordError, match=rf"t-0 at offset {first.every[40].offset}"):
            all_of(merge)


def test_take_when_damage_is_skipped_then_the_others_come_and_it_is_told(tmp_path: Path) -> None:
    first, second = damaged(tmp_path)
    told: list[SourceDamage] = []
    readers = PartitionReaders(select_logs(tmp_path), skips_damage=True, on_damage=told.append)
    with Merge(readers, plan_of()) as merge:
        merge.assign(merge.partitions)
        found = all_of(merge)
    left = [*first.every[:40], *first.every[50:]]
    assert found == list(merged({TopicPartition("t", 0): left, TopicPartition("t", 1): second.every}))
    assert [(one.topic_partition, one.next_offset) for one in told] == [
        (TopicPartition("t", 0), first.every[50].offset)
    ]


def written(folder: Path, count: int) -> None:
    """A log of that many batches of one record each, some to a segment; little of it is buffered by `plan_of`."""
    with PartitionLogWriter(folder, segment_bytes=200_000) as writer:
        for offset in range(count):
            builder = kf.RecordBatchBuilder(base_offset=offset)
            builder.append(offset, b"key", random.Random(offset).randbytes(9000))
            writer.append(builder.build())


def test_take_when_damage_is_in_front_of_what_was_refused_then_it_is_told_once(tmp_path: Path) -> None:
    written(tmp_path / "a-0", 40)
    written(tmp_path / "a-1", 40)
    first = min((tmp_path / "a-0").glob("*.log"))
    damaged = bytearray(first.read_bytes())
    damaged[len(damaged) // 2 + 100] ^= 1
    first.write_bytes(damaged)
    for buffered_bytes in range(100_000, 200_000, 10_000):
        told: list[SourceDamage] = []
        readers = PartitionReaders(select_logs(tmp_path), skips_damage=True, on_damage=told.append)
        with Merge(readers, replace(plan_of(), buffered_bytes_per_partition=buffered_bytes)) as merge:
            merge.assign(merge.partitions)
            assert len(all_of(merge)) == 79
        assert len(told) == 1


def test_take_when_the_log_loses_what_was_refused_then_goes_on_behind_it_and_it_is_told(
    tmp_path: Path,
) -> None:
    written(tmp_path / "a-0", 100)
    plan = replace(plan_of(), buffered_bytes_per_partition=60_000)
    readers = PartitionReaders(select_logs(tmp_path))
    with Merge(readers, plan) as merge:
        merge.assign(merge.partitions)
        taken = merge.take(1)
        assert taken is not None
        segments = sorted((tmp_path / "a-0").glob("*.log"))
        for segment in segments[:2]:
            segment.unlink()
        rest = [row.offset for _, row in all_of(merge)]
    start = int(segments[2].stem)
    (gone,) = readers.gone
    assert rest == [*range(1, gone.from_offset), *range(start, 100)]
    assert gone == OffsetsGone(TopicPartition("a", 0), gone.from_offset, start)


def test_take_when_a_partition_is_deleted_then_the_others_come_and_it_is_told(tmp_path: Path) -> None:
    """One while it is read, and one before: as brokers do, the folder is renamed, and removed later."""
    partitions = [TopicPartition("a", number) for number in range(3)]
    for one in partitions:
        written(tmp_path / str(one), 60)
    plan = replace(plan_of(), buffered_bytes_per_partition=60_000)
    readers = PartitionReaders(select_logs(tmp_path))
    found = []
    with Merge(readers, plan) as merge:
        merge.assign(partitions[:1])
        while (taken := merge.take(1)) is not None:
            found += rows_of(taken)
            if len(found) == 1:
                for one in partitions[:2]:
                    (tmp_path / str(one)).rename(tmp_path / f"{one}.{'0' * 32}-delete")
        merge.assign(partitions[1:])
        found += all_of(merge)
    (gone,) = readers.gone
    assert (gone.topic_partition, gone.to_offset) == (partitions[0], 60)
    assert readers.deleted == [partitions[1]]
    assert [row.offset for one, row in found if one == partitions[0]] == list(range(gone.from_offset))
    assert [row.offset for one, row in found if one == partitions[1]] == []
    assert [row.offset for one, row in found if one == partitions[2]] == list(range(60))
