"""What became of the transaction of each record that `kafkafmt inspect --records` shows."""

from __future__ import annotations

from kafkafmt.cli.output import notify
from kafkafmt.cli.sources import SourceFile
from kafkafmt.codecs import DEFAULT_MAX_DECOMPRESSED_BYTES
from kafkafmt.log import PartitionLog
from kafkafmt.log.isolation import TransactionState, TransactionStates
from kafkafmt.records.batch import RecordBatch
from kafkafmt.storage import StoragePath


class TransactionMarks:
    """Look up the state of the transaction of a batch, by the log around its file.

    A log is read when the first transactional batch of its folder is looked up. Logs without transactions cost nothing.
    """

    def __init__(self) -> None:
        self._folder: StoragePath | None = None
        self._states: TransactionStates | None = None

    def of(self, source: SourceFile, batch: RecordBatch) -> TransactionState | None:
        """Return the state of the transaction of a batch's records; None for others, for markers, and if not known.

        If the states of a folder cannot be known, says so once. Raises OSError.
        """
        if not batch.is_transactional or batch.is_control:
            return None
        folder = source.path.parent
        if folder != self._folder:
            self._folder, self._states = folder, self._read(source, folder)
        return None if self._states is None else self._states.of(batch.producer_id, batch.base_offset)

    def _read(self, source: SourceFile, folder: StoragePath) -> TransactionStates | None:
        if source.topic_partition is None:
            # The file may be one of many: the markers of its transactions may be in another.
            why = "expected a segment in the folder of its partition, <topic>-<partition>"
            notify(f"transactions not known: {source.path}: {why}")
            return None
        try:
            return TransactionStates(PartitionLog(folder).segments(), DEFAULT_MAX_DECOMPRESSED_BYTES)
        except FileNotFoundError as error:
            notify(f"transactions not known: {error.filename or folder}: deleted since it was listed")
            return None
