"""Commits offset after offset to the store in a folder, and tells each on standard output once it is durable."""

from __future__ import annotations

import asyncio
import itertools
import sys
from pathlib import Path

from kafkafmt.serve.groups import OffsetStore
from kafkafmt.serve.groups.offsets import Commit, CommittedOffset
from kafkafmt.types import TopicPartition


async def main(state: Path) -> None:
    store = OffsetStore(state, 1 << 20)
    for offset in itertools.count():
        committed = CommittedOffset(offset, -1, "", 0)
        await store.commit(Commit("g", TopicPartition("t", number), committed) for number in range(3))
        print(offset, flush=True)


asyncio.run(main(Path(sys.argv[1])))
