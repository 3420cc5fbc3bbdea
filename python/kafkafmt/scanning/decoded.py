"""Tasks of a scan whose keys or values are decoded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

    from kafkafmt.decode.batch_decoder import BatchDecoder
    from kafkafmt.scanning.tasks import OffsetRange, ScanTask
    from kafkafmt.types import TopicPartition


@dataclass(frozen=True)
class DecodedTask:
    """A task whose rows are decoded after they are read. It can be pickled."""

    task: ScanTask
    decoder: BatchDecoder

    @property
    def ranges(self) -> Mapping[TopicPartition, OffsetRange]:
        return self.task.ranges

    @property
    def size_in_bytes(self) -> int:
        return self.task.size_in_bytes

    def read(self, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the rows. Keys and values are decoded if they, or their errors, are among the columns.

        Raises as the task, DecodingError if errors are to be raised, and SchemaSourceError.
        """
        names = self.decoder.schema.names if columns is None else list(columns)
        decoder = self.decoder.projected(names)
        if decoder is None:
            yield from self.task.read(names)
            return
        for batch in self.task.read(decoder.input_columns):
            for _, decoded in decoder.decode_parts(batch):
                yield decoded.select(names)

    def read_with_stored(self) -> Iterator[tuple[pa.RecordBatch, pa.RecordBatch]]:
        """Yield the rows as they are stored, and decoded. Raises as `read`."""
        for batch in self.task.read(self.decoder.input_columns):
            yield from self.decoder.decode_parts(batch)
