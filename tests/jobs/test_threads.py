"""Threads share one total evenly, and their results are those of one thread.

Memory Management in Kafka Streams, "Summary": Total is divided evenly by numThreads when the instance starts up.
"""

from __future__ import annotations

import errno
import random
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pytest

from _kafkafmt.streams.merge import join_merged
from jobs.logs import Row, make_logs, merged
from jobs.test_merging import rows_of
from kafkafmt.jobs.memory import CLUSTER, plan_for
from kafkafmt.jobs.partition_readers import PartitionReaders, select_logs
from kafkafmt.jobs.replay import BUFFERS_AHEAD, JoinedMerge, Merge
from kafkafmt.jobs.thread_shares import shares_of
from kafkafmt.memory import MemoryPlan, MemoryPlanError
from kafkafmt.storage import StoragePath
from kafkafmt.types import TopicPartition

MIB = 1024 * 1024


@contextmanager
def joined(source: StoragePath, threads: int, total: int = 16 * MIB) -> Iterator[JoinedMerge]:
    folders = select_logs(source)
    plan = MemoryPlan(total, threads, producer_bytes=0, consumer_bytes=MIB, least_batch_bytes=1024)
    with ExitStack() as stack:
        merges = [
            stack.enter_context(
                Merge(
                    PartitionReaders({one: folders[one] for one in share}),
                    plan,
                    buffers_ahead=BUFFERS_AHEAD,
                )
            )
            for share in shares_of(sorted(folders), threads)
        ]
        yield stack.enter_context(JoinedMerge(merges))


@pytest.mark.parametrize("threads", [1, 2, 3, 7])
def test_merge_when_threads_share_it_then_is_that_of_one_thread(tmp_path: Path, threads: int) -> None:
    logs = {tp: log.committed for tp, log in make_logs(tmp_path, topics=("a", "b")).items()}
    found = []
    with joined(tmp_path, threads) as merge:
        merge.assign(merge.partitions)
        while (taken := merge.take()) is not None:
            found += rows_of(taken)
        assert 0 < merge.peak_bytes <= 16 * MIB
    assert found == list(merged(logs))


@pytest.mark.parametrize("seed", range(3))
def test_merge_when_partitions_come_and_go_then_each_continues_after_what_was_taken(
    tmp_path: Path, seed: int
) -> None:
    logs = {tp: log.committed for tp, log in make_logs(tmp_path, seed=seed, partitions=6).items()}
    rng = random.Random(seed)
    positions = dict.fromkeys(logs, 0)
    with joined(tmp_path, 2) as merge:
        while any(positions[tp] < len(logs[tp]) for tp in logs):
            chosen = set(rng.sample(sorted(logs), rng.randrange(1, 7)))
            merge.revoke(set(logs) - chosen)
            merge.assign(chosen)
            left = {tp: logs[tp][positions[tp] :] for tp in chosen}
            found: list[tuple[TopicPartition, Row]] = []
            while len(found) < 50 and (taken := merge.take()) is not None:
                found += rows_of(taken)
            assert found == [one for one, _ in zip(merged(left), found, strict=False)]
            for topic_partition, _ in found:
                positions[topic_partition] += 1


@pytest.mark.parametrize("number", [0, 1])
def test_merge_when_closing_a_thread_fails_then_ends_the_others_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    make_logs(tmp_path, partitions=4)
    before = threading.active_count()
    with joined(tmp_path, 2) as merge:
        merge.assign(merge.partitions)
        assert merge.take() is not None
        assert threading.active_count() == before + 2

        def fail() -> None:
            raise OSError(errno.EIO, "Input/output error")

        with monkeypatch.context() as patched:
            patched.setattr(merge._lanes[number].merge, "close", fail)
            with pytest.raises(OSError, match="Input/output error"):
                merge.close()
        assert threading.active_count() == before


def test_shares_when_partitions_are_added_then_the_others_stay_with_their_thread() -> None:
    partitions = [TopicPartition(topic, number) for topic in ("a", "b") for number in range(8)]
    before, after = (shares_of(some, 3) for some in (partitions[::2], partitions))
    assert all({*few} <= {*many} for few, many in zip(before, after, strict=True))


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_plan_when_threads_share_the_total_then_each_has_an_even_part(threads: int) -> None:
    one, plan = plan_for(256 * MIB, 4), plan_for(256 * MIB, 4, threads=threads)
    assert plan.thread_bytes == one.thread_bytes // threads
    live = plan_for(256 * MIB, 4, source=CLUSTER, threads=threads)
    assert live.fixed_bytes["consumer"] == live.consumer_bytes > 0
    assert live.thread_plan(4).rest_bytes >= 0


def test_plan_when_threads_have_no_room_then_says_what_is_enough() -> None:
    with pytest.raises(MemoryPlanError, match="in each of 4 threads: expected a total of at least") as error:
        plan_for(16 * MIB, 8, threads=4)
    assert plan_for(error.value.least_total_bytes, 8, threads=4).threads == 4


@pytest.mark.parametrize(
    "wrong", [([], [], []), ([0], [], []), ([0], [10**6], [[0]]), ([0], [-1], [[0]]), ([0], [0], [[0, 1]])]
)
def test_join_when_arguments_do_not_fit_then_raises(tmp_path: Path, wrong: Sequence[list[object]]) -> None:
    make_logs(tmp_path, partitions=1)
    with joined(tmp_path, 1) as merge:
        merge.assign(merge.partitions)
        taken = merge.take()
        assert taken is not None
        inputs, firsts, ranks = wrong
        with pytest.raises(ValueError, match="expected"):
            join_merged(
                [taken.records for _ in inputs],
                firsts,  # type: ignore[arg-type]
                [np.array(one, np.int32) for one in ranks],
            )
