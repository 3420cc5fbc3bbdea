"""The loop of a replay: write all records of a merge to a target, then finish the target."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from kafkafmt._util.user_errors import UserError

if TYPE_CHECKING:
    from kafkafmt.jobs.replay.merging import Merge
    from kafkafmt.jobs.replay.threads import JoinedMerge
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


class FlushingTarget(ReplayTarget, Protocol):
    """A target whose records are safe before its end, so that positions may be committed meanwhile."""

    def flush(self) -> None:
        """Return once all records are where they cannot be lost by a kill of this process."""


@dataclass(frozen=True)
class Replayed:
    """The result of a replay: the number of records, and the bytes of batches that were read."""

    records: int
    source_bytes: int


def replay(
    merge: Merge | JoinedMerge,
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
        merge.leave()
        target.finish()
    progress(merge.read_bytes - reported)
    return Replayed(records, merge.read_bytes)


def _merged(merge: Merge | JoinedMerge, *, by_time: bool) -> Iterator[Merged]:
    if by_time:
        merge.assign(merge.owned)
        yield from _taken(merge)
        return
    for topic_partition in merge.partitions:
        merge.assign([topic_partition])
        yield from _taken(merge)
        merge.revoke([topic_partition])


def _taken(merge: Merge | JoinedMerge) -> Iterator[Merged]:
    while (merged := merge.take()) is not None:
        yield merged
