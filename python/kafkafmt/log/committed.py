"""What a reader of committed records sees of a log: how far it reads, and which batches are left out (KIP-98)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kafkafmt.decoding import without
from kafkafmt.log.following import FollowedLog
from kafkafmt.log.reading import aborted, first_offset

if TYPE_CHECKING:
    from _kafkafmt.scan import BatchRun
    from kafkafmt.errors import KafkaFormatError
    from kafkafmt.log.directory import PartitionLog


class CommittedView:
    """The transactions of a log as they are now.

    Attributes:
        end_offset: of the first transaction that is open; that of the log where none is (Kafka's last stable offset).
    """

    def __init__(self, log: PartitionLog) -> None:
        followed = FollowedLog(
            log.path,
            max_decompressed_bytes=log.max_decompressed_bytes,
            from_segment_start=log.from_segment_start,
        )
        unread = followed.unread_transactions
        assert unread is not None  # a log that was opened just now
        self._transactions = unread.read()
        first_open = self._transactions.tracker.first_open_offset
        self.end_offset = followed.end_offset if first_open is None else first_open

    def without_aborted(self, run: BatchRun, *, verify: bool) -> tuple[BatchRun, KafkaFormatError | None]:
        """A run without the batches of aborted transactions; see `kafkafmt.decoding.without`."""
        rows = run.index
        if not rows["is_transactional"].any():
            return run, None
        bound = int(rows["last_offset"].max()) + 1
        transactions = self._transactions.overlapping(first_offset(run), bound)
        return without(run, aborted(rows, transactions), verify=verify)
