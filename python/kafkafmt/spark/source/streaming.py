"""For streams only. `spark.readStream.format("kafkafmt")` reads growing logs."""

from __future__ import annotations

import errno
import logging
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING

from kafkafmt.log.listing import segments_among
from kafkafmt.scanning.data_loss import DataLossError
from kafkafmt.scanning.splits import read_split
from kafkafmt.spark.source.log_stream import LogStream
from kafkafmt.spark.source.options import Amount, StreamOptions
from kafkafmt.spark.source.reading import ReadTask
from kafkafmt.spark.source.schema import OutputColumns
from kafkafmt.spark.tables import options_of
from kafkafmt.storage import storage_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import InputPartition
    from pyspark.sql.types import StructType

    from kafkafmt.log.segment import Segment

_LOG = logging.getLogger(__name__)


class LogSource:
    """A StreamSource of the logs that the options name, with the columns of the DataFrame."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._given = dict(options)
        self._schema = schema

    @cached_property
    def _options(self) -> StreamOptions:
        return StreamOptions.parse(options_of(self._given, self._schema))

    @cached_property
    def _output(self) -> OutputColumns:
        return OutputColumns.of(self._options.read, self._schema)

    def check(self) -> None:
        assert self._output

    @property
    def limit(self) -> Amount:
        return self._options.limit

    def open(self) -> LogStream:
        return LogStream(self._options)

    def read(self, task: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(task, ReadTask)
        for split in task.splits:
            try:
                yield from read_split(split, self._options.read, self._output)
            except FileNotFoundError:
                _ensure_retired(split.segment)
                what = f"{split.segment}: the segment was deleted before it was read"
                if self._options.fails_on_data_loss:
                    raise DataLossError(f"{what}; failOnDataLoss=false continues without it") from None
                _LOG.warning("%s: continuing without it", what)


def _ensure_retired(missing: Segment) -> None:
    """Raise FileNotFoundError unless retention can have deleted a segment: then its log has later segments only."""
    folder, left = missing.path.parent, []
    with suppress(FileNotFoundError), storage_of(folder).entries(folder) as entries:
        left = segments_among(folder, entries)
    if not left:
        found = "and no other one in its folder: expected the log on each executor"
    elif left[0].base_offset <= missing.base_offset:
        found = f"but {left[0].path.name} may have its records after a compaction: restart the query"
    else:
        return
    raise FileNotFoundError(errno.ENOENT, f"no such segment, {found}", str(missing)) from None
