"""The plan of an export: which offsets of which topics go to which table, and in which tasks. Made by the driver."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kafkafmt.export.tables import DataFile, TableCommitter, TableState
    from kafkafmt.export.tasks import ExportTask
    from kafkafmt.scanning.tasks import OffsetRange
    from kafkafmt.types import TopicPartition


@dataclass(frozen=True)
class ExportPlan:
    """The export of one table: what one run does. Its tasks may run in any processes, in any order.

    ranges: the offsets that the run exports, by partition; the ends become the state of the table.
    """

    run: str
    table: TableCommitter
    state: TableState
    ranges: Mapping[TopicPartition, OffsetRange]
    tasks: Sequence[ExportTask]

    def commit(self, files: Sequence[DataFile]) -> TableState:
        """Commit the files of all tasks. Raises TableConflictError, after the files were removed."""
        raise NotImplementedError

    def abort(self, files: Sequence[DataFile]) -> None:
        """Remove the files of tasks that have ended, and let other exports begin."""
        raise NotImplementedError
