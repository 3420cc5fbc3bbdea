"""Large batches that are read in threads: what they take together is bounded, and counted until it is used."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kafkafmt.log.tail import LogTail
from kafkafmt.memory import MemoryBudget
from kafkafmt.server.batch_work import BatchWork
from kafkafmt.server.metrics import Metrics
from kafkafmt.server.yielding import run_steps
from log.samples import batches, put_segment

LOGS, SIZE = 6, 2 * 1024 * 1024


class Held(Metrics):
    """What is held of the budget of reads."""

    def __init__(self) -> None:
        self.now = self.most = 0

    def memory_used(self, budget: MemoryBudget) -> None:
        assert budget.name == "serve.reads"
        self.now, self.most = budget.held_bytes, max(self.most, budget.held_bytes)


@pytest.fixture
def folders(tmp_path: Path) -> list[Path]:
    """Logs of two batches, each of more than `SIZE` bytes."""
    found = [tmp_path / f"t-{number}" for number in range(LOGS)]
    for folder in found:
        put_segment(folder, 0, batches(0, 2, size=SIZE))
    return found


def read_at_once(folders: list[Path], read_bytes: int) -> Held:
    """Check the CRCs of all logs at the same time; raise for one that is not sound."""
    held = Held()

    async def main() -> None:
        work = BatchWork(read_bytes, held)

        async def check(folder: Path) -> None:
            log = LogTail(folder, is_read=False)
            await run_steps(log.refresh_steps(), work)
            found = log.find(0)
            assert found is not None
            end = found.end_position
            assert await run_steps(found.segment.sound_end_steps(0, end), work) == end

        await asyncio.wait_for(asyncio.gather(*map(check, folders)), 60)
        work.close()

    asyncio.run(main())
    assert held.now == 0
    return held


def test_large_batches_when_many_are_read_then_those_that_have_room_are_read_together(
    folders: list[Path],
) -> None:
    held = read_at_once(folders, 5 * SIZE // 2)
    assert 2 * SIZE < held.most < 5 * SIZE // 2


def test_large_batches_when_none_has_room_then_each_is_read_alone(folders: list[Path]) -> None:
    held = read_at_once(folders, SIZE // 2)
    assert SIZE < held.most < 2 * SIZE
