"""The loop of a replay: what the merge hands out goes to the target, which is finished once nothing is left."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from kafkafmt.types import TopicPartition

if TYPE_CHECKING:
    from kafkafmt.jobs.replay.merging import Merge
    from kafkafmt.memory import Merged

# How many records go by between two looks at how far it is.
_PROGRESS_RECORDS = 10_000


class ReplayError(Exception):
    """Why nothing can be replayed, in one line."""


class ReplayTarget(Protocol):
    """Where records go, in the order in which they come."""

    def write(self, merged: Merged) -> None:
        """Take what the merge handed out. It is valid until the next is taken."""

    def finish(self) -> None:
        """Have all that was written be there. Not called where the replay failed."""

    def close(self) -> None:
        """Let go of everything, of what is not finished as well."""


@dataclass(frozen=True)
class Replayed:
    """What was replayed."""

    records: int
    source_bytes: int


def replay(
    merge: Merge,
    target: ReplayTarget,
    *,
    by_time: bool,
    progress: Callable[[int], None] = lambda read_bytes: None,
) -> Replayed:
    """Replay all partitions of the merge's logs to a target, by time, or else one after the other.

    progress: called with bytes that were read since it was called last. Closes the target; raises what merge and target
    raise.
    """
    records = told = looked = 0
    with closing(target):
        for merged in _merged(merge, by_time=by_time):
            target.write(merged)
            records += len(merged)
            if records - looked >= _PROGRESS_RECORDS:
                progress(merge.read_bytes - told)
                told, looked = merge.read_bytes, records
        target.finish()
    progress(merge.read_bytes - told)
    return Replayed(records, merge.read_bytes)


def _merged(merge: Merge, *, by_time: bool) -> Iterator[Merged]:
    every = merge.partitions
    assignments: Sequence[list[TopicPartition]] = [every] if by_time else [[one] for one in every]
    for assigned in assignments:
        merge.assign(assigned)
        while (merged := merge.take()) is not None:
            yield merged
        merge.revoke(assigned)
