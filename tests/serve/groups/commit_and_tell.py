"""Commits offset after offset, in a generation of its own each, to the store in a folder.

Tells each on standard output once both are durable.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
from pathlib import Path

from kafkafmt.serve.groups import OffsetStore
from kafkafmt.serve.groups.generation import Generation, GenerationMember
from kafkafmt.serve.groups.offsets import CommittedOffset, OffsetCommit
from kafkafmt.serve.options import GroupOptions
from kafkafmt.types import TopicPartition


async def main(state: Path) -> None:
    store = OffsetStore(state, GroupOptions())
    for offset in itertools.count():
        committed = CommittedOffset(offset, -1, "", 0)
        protocols = {"range": b"metadata"}
        members = [
            GenerationMember(f"m{number}", None, "", "", 10.0, 60.0, protocols, b"%d" % offset)
            for number in range(3)
        ]
        await asyncio.gather(
            store.save_generation("g", Generation(offset + 1, "consumer", "range", "m0", tuple(members))),
            store.commit(OffsetCommit("g", TopicPartition("t", number), committed) for number in range(3)),
        )
        print(offset, flush=True)


asyncio.run(main(Path(sys.argv[1])))
