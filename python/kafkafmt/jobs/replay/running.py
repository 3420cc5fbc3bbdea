"""The loop of a replay: write all records of a merge to a target, then finish the target."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from kafkafmt._util.user_errors import UserError
from kafkafmt.types import TopicPartition

if TYPE_CHECKING:
    from kafkafmt.jobs.replay.merging import Merge
    from kafkafmt.streams import Merged

# Progress is reported after this many records.
_PROGRESS_RECORDS = 10_000


class ReplayError(UserError):
    """Records cannot be replayed; the message says why, in one line."""


class ReplayTarget(Protocol):
    """The target of a replay. It gets the records in their order."""

    def write(self, merged: Merged) -> None:
        """Write records of the merge. They are valid until the next call."""

    def finish(self) -> None:
        """Complete the target after the last record. Not called if the replay failed."""

    def close(self) -> None:
        """Release all resources, and remove an unfinished target."""


@dataclass(frozen=True)
class Replayed:
    """The result of a replay: the number of records, and the bytes of batches that were read."""

    records: int
    source_bytes: int


def replay(
    merge: Merge,
    target: ReplayTarget,
    *,
    by_time: bool,
    progress: Callable[[int], None] = lambda read_bytes: None,
) -> Replayed:
    """Replay all partitions of a merge to a target, and close the target.

    by_time: merge all partitions by time; otherwise replay one after the other. progress: called with the number of
    bytes read since its last call. Raises what merge and target raise.
    """
    records = reported = looked = 0
    with closing(target):
        for merged in _merged(merge, by_time=by_time):
            target.write(merged)
            records += len(merged)
            if records - looked >= _PROGRESS_RECORDS:
                progress(merge.read_bytes - reported)
                reported, looked = merge.read_bytes, records
        target.finish()
    progress(merge.read_bytes - reported)
    return Replayed(records, merge.read_bytes)


def _merged(merge: Merge, *, by_time: bool) -> Iterator[Merged]:
    every = merge.partitions
    assignments: Sequence[list[TopicPartition]] = [every] if by_time else [[one] for one in every]
    for assigned in assignments:
        merge.assign(assigned)
        while (merged := merge.take()) is not None:
            yield merged
        merge.revoke(assigned)
