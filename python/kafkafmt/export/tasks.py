"""Tasks of an export: each reads a part of a scan in one process, and writes it to Parquet files of a table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kafkafmt.export.layout import FileLayout, WriteOptions
    from kafkafmt.export.tables import DataFile
    from kafkafmt.scanning.tasks import ScanTask


@dataclass(frozen=True)
class ExportTask:
    """Parts of a scan that become files of one table. It can be pickled, and runs in any process.

    run: the name of the run. number: of the task in the run. attempt: the name of an attempt, if the engine may run two
    at a time. All are part of the names of its files.
    """

    run: str
    number: int
    parts: Sequence[ScanTask]
    layout: FileLayout
    options: WriteOptions
    attempt: str = ""

    @property
    def prefix(self) -> str:
        """What the names of all files of the run begin with. Files named `merged` never become files of a table."""
        from kafkafmt.export.schemas import DELETED

        kind = "merged" if DELETED in self.layout.schema.names else "part"
        return f"{kind}-{self.run}-"

    @property
    def size_in_bytes(self) -> int:
        return sum(part.size_in_bytes for part in self.parts)

    def run_task(self, progress: Callable[[int], object] | None = None) -> list[DataFile]:
        """Read the parts, and return the files that were written: complete and durable.

        progress: called with stored bytes that were read since its last call. If it fails, it removes its files.
        Raises KafkaFormatError for damage, ExportError, and OSError.
        """
        from kafkafmt.export.schemas import DELETED, conform, flatten_batch
        from kafkafmt.export.upsert import read_with_deleted
        from kafkafmt.export.writing import TableWriter

        layout = self.layout
        name = f"{self.prefix}{self.number:05}{self.attempt and f'-{self.attempt}'}"
        writer = TableWriter(name, layout, self.options)
        try:
            for part in self.parts:
                marks = DELETED in layout.schema.names
                for batch in read_with_deleted(part) if marks else part.read():
                    rows = flatten_batch(batch) if layout.flattened else batch
                    for conformed in conform(rows, layout.schema):
                        writer.write(conformed)
                if progress is not None:
                    progress(part.size_in_bytes)
            return writer.close()
        except BaseException:
            writer.abort()
            raise


def joined(parts: Iterable[ScanTask], most_bytes: int) -> list[list[ScanTask]]:
    """Join parts, in their order, to groups of up to `most_bytes`, and of at least one part."""
    groups: list[list[ScanTask]] = []
    size = 0
    for part in parts:
        if not groups or size + part.size_in_bytes > most_bytes:
            groups.append([])
            size = 0
        groups[-1].append(part)
        size += part.size_in_bytes
    return groups
