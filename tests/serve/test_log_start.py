"""Records below the log start offset are not served, and the start rises with the broker's checkpoint."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
from kafka.errors import KafkaStorageError, OffsetOutOfRangeError

import kafkafmt as kf
from endpoints.endpoint_here import Here, serving
from endpoints.requests import Wanted, fetch, list_offsets
from kafkafmt.log import LogAppender
from kafkafmt.log.checkpoints import LOG_START_OFFSET_CHECKPOINT, CheckpointError, log_start_offsets_to_bytes
from kafkafmt.log.directory import FollowedFolders
from kafkafmt.types import TopicPartition
from log.samples import batch, batches, offsets, put_segment

FETCH, LIST_OFFSETS = 12, 5
EARLIEST = -2


def start_at(offset: int, directory: Path) -> None:
    temporary = directory / "checkpoint.tmp"
    temporary.write_bytes(log_start_offsets_to_bytes({TopicPartition("t", 0): offset}))
    temporary.rename(directory / LOG_START_OFFSET_CHECKPOINT)


async def earliest(here: Here) -> Any:
    with await here.client() as client:
        answer = await client.ask(list_offsets(("t", 0, EARLIEST)), LIST_OFFSETS)
    return answer.topics[0].partitions[0]


async def fetched(here: Here, offset: int) -> Any:
    with await here.client() as client:
        answer = await client.ask(fetch(Wanted("t", 0, offset)), FETCH)
    return answer.responses[0].partitions[0]


def test_log_when_records_are_deleted_while_it_is_served_then_they_are_out_of_range(tmp_path: Path) -> None:
    put_segment(tmp_path / "t-0", 0, batches(0, 30, 5))

    async def scenario() -> None:
        async with serving(tmp_path) as here:
            assert (await earliest(here)).offset == 0
            assert (await fetched(here, 0)).error_code == 0
            start_at(13, tmp_path)
            assert (await earliest(here)).offset == 13
            assert (await fetched(here, 12)).error_code == OffsetOutOfRangeError.errno
            found = await fetched(here, 13)
            assert (found.error_code, found.log_start_offset) == (0, 13)
            assert offsets(kf.MemoryRecords(found.records).records())[0] == 10  # the batch that holds it

    asyncio.run(scenario())


def test_checkpoint_when_malformed_then_nothing_is_served_unless_all_is_asked_for(tmp_path: Path) -> None:
    put_segment(tmp_path / "t-0", 0, batches(0, 30, 5))
    (tmp_path / LOG_START_OFFSET_CHECKPOINT).write_text("0\n1\n")

    async def scenario() -> None:
        async with serving(tmp_path) as here:
            assert (await fetched(here, 0)).error_code == KafkaStorageError.errno
            assert (await earliest(here)).error_code == KafkaStorageError.errno
        async with serving(tmp_path, from_segment_start=True) as here:
            assert ((await earliest(here)).offset, (await fetched(here, 0)).error_code) == (0, 0)

    asyncio.run(scenario())


def test_fetch_when_many_partitions_cannot_be_read_then_the_folders_are_not_listed_for_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(20):
        put_segment(tmp_path / f"t-{number}", 0, batches(0, 5, 5))
    (tmp_path / LOG_START_OFFSET_CHECKPOINT).write_text("0\n1\n")
    os.utime(tmp_path, (1, 1))

    async def scenario() -> None:
        async with serving(tmp_path) as here:
            listings: list[int] = []
            refresh = FollowedFolders.refresh

            def counted(folders: FollowedFolders, **options: Any) -> set[TopicPartition]:
                listings.append(1)
                return refresh(folders, **options)

            monkeypatch.setattr(FollowedFolders, "refresh", counted)
            with await here.client() as client:
                wanted = [Wanted("t", number) for number in range(20)]
                (topic,) = (await client.ask(fetch(*wanted), FETCH)).responses
            assert {one.error_code for one in topic.partitions} == {KafkaStorageError.errno}
            assert len(listings) <= 1

    asyncio.run(scenario())


def test_append_when_the_checkpoint_says_that_it_is_deleted_then_is_refused(tmp_path: Path) -> None:
    start_at(13, tmp_path)
    with LogAppender(tmp_path / "t-0") as log:
        with pytest.raises(CheckpointError, match="records below 13 are deleted, and a batch that ends at 4"):
            log.append(batch(0, 5))
        log.append(batch(13, 5))
        assert log.next_offset == 18
