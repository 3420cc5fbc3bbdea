"""What became of the transaction of each record that `kafkafmt inspect --records` shows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from _kafkafmt.json.record_lines import TransactionState as StateNumber
from kafkafmt.cli.output import notify
from kafkafmt.cli.sources import SourceFile
from kafkafmt.codecs import DEFAULT_MAX_DECOMPRESSED_BYTES
from kafkafmt.log import PartitionLog
from kafkafmt.log.isolation import TransactionState, TransactionStates
from kafkafmt.records.batch import RecordBatch
from kafkafmt.storage import StoragePath

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from _kafkafmt.batches.scan import BatchRun

_NUMBERS: dict[TransactionState | None, int] = {
    None: StateNumber.NO_TRANSACTION,
    "committed": StateNumber.COMMITTED,
    "aborted": StateNumber.ABORTED,
    "open": StateNumber.OPEN,
}


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
        return self._state(source, batch.producer_id, batch.base_offset)

    def of_run(self, source: SourceFile, run: BatchRun) -> NDArray[np.uint8] | None:
        """Return the number of the state for each batch of a run, as `of` does; None if none is transactional."""
        rows = run.index
        numbers = (rows["is_transactional"] & ~rows["is_control"]).nonzero()[0].tolist()
        if not numbers:
            return None
        states = np.full(len(run), StateNumber.NO_TRANSACTION, np.uint8)
        for number in numbers:
            producer_id, base_offset = int(rows["producer_id"][number]), int(rows["base_offset"][number])
            states[number] = _NUMBERS[self._state(source, producer_id, base_offset)]
        return states

    def _state(self, source: SourceFile, producer_id: int, base_offset: int) -> TransactionState | None:
        folder = source.path.parent
        if folder != self._folder:
            self._folder, self._states = folder, self._read(source, folder)
        return None if self._states is None else self._states.of(producer_id, base_offset)

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
