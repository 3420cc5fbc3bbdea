"""The writer of a partition whose folder is deleted or replaced between an append and its flush."""

from __future__ import annotations

import asyncio
import errno
import shutil
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from _kafkafmt.batches.scan import scan
from kafkafmt.log import LogAppender, PartitionLog
from kafkafmt.log.appender import create_log
from kafkafmt.serve.catalog import Catalog
from kafkafmt.serve.producing.failed_logs import FailedLogs
from kafkafmt.serve.producing.writers import Appended, PartitionWriter
from kafkafmt.types import TimestampType
from serve.produced import batch

SETTINGS: Any = SimpleNamespace(segment_bytes=1 << 20, timestamp_type=TimestampType.CREATE_TIME)
WAIT_SECONDS = 0.5


def with_writer(folder: Path, scenario: Callable[[PartitionWriter], Awaitable[None]]) -> None:
    """Run a scenario with the writer of an empty log."""
    create_log(folder)
    partition = Catalog(folder.parent).partition("t", 0)
    assert partition is not None

    async def run() -> None:
        with ThreadPoolExecutor(2) as threads:
            writer = PartitionWriter(partition, threads, FailedLogs())
            await scenario(writer)
            await writer.close()

    asyncio.run(run())


async def append(writer: PartitionWriter) -> Appended:
    run = scan(bytearray(batch()))[0]
    return await writer.append(run, SETTINGS, lambda: 0)


def test_flush_when_the_folder_was_deleted_and_a_later_append_has_failed_then_says_so(tmp_path: Path) -> None:
    async def scenario(writer: PartitionWriter) -> None:
        appended = await append(writer)
        shutil.rmtree(tmp_path / "t-0")
        with pytest.raises(FileNotFoundError):
            await append(writer)
        with pytest.raises(OSError, match="deleted or replaced") as error:
            await writer.flush(appended.end_offset)
        assert error.value.errno == errno.ESTALE

    with_writer(tmp_path / "t-0", scenario)


def test_flush_when_the_folder_is_replaced_while_it_begins_then_says_so_and_later_records_are_in_the_new_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The append that finds the new folder closes the log, which the thread of the flush is about to use."""
    may_flush, flush = threading.Event(), LogAppender.flush

    def waiting(log: LogAppender) -> int:
        may_flush.wait()
        return flush(log)

    async def scenario(writer: PartitionWriter) -> None:
        appended = await append(writer)
        with monkeypatch.context() as patched:
            patched.setattr(LogAppender, "flush", waiting)
            flushing = asyncio.create_task(writer.flush(appended.end_offset))
            await asyncio.sleep(0)
            shutil.rmtree(tmp_path / "t-0")
            create_log(tmp_path / "t-0")
            appending = asyncio.create_task(append(writer))
            await asyncio.wait([appending], timeout=WAIT_SECONDS)
            may_flush.set()
            with pytest.raises(OSError, match="deleted or replaced"):
                await flushing
        assert (await appending).base_offset == 0
        await writer.flush((await appending).end_offset)

    with_writer(tmp_path / "t-0", scenario)
    assert [record.offset for record in PartitionLog(tmp_path / "t-0").records()] == [0, 1, 2]
