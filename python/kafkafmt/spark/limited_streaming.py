"""For streams only. The reader for PySpark 4.2 and later: limits, Trigger.AvailableNow, the latest offset as a metric.

A source names one limit, of bytes, rows or files, and PySpark passes it back for each micro-batch. For a trigger that
reads everything it passes ReadAllAvailable. So the reader names any one of its limits, and applies all of them if
PySpark passes a limit.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxFiles,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from kafkafmt.spark.one_line_errors import OneLineErrors
from kafkafmt.spark.source.options import UNLIMITED
from kafkafmt.spark.stream_offsets import from_json, to_json
from kafkafmt.spark.stream_reader import StreamReader


class LimitedStreamReader(StreamReader, SupportsTriggerAvailableNow):
    can_limit = True

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        with OneLineErrors():
            most = self._source.limit
        if most.size_in_bytes != UNLIMITED.size_in_bytes:
            return ReadMaxBytes(most.size_in_bytes)
        if most.rows != UNLIMITED.rows:
            return ReadMaxRows(most.rows)
        if most.files != UNLIMITED.files:
            return ReadMaxFiles(most.files)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # type: ignore[override]  # noqa: N802
        most = UNLIMITED if isinstance(limit, ReadAllAvailable) else self._source.limit
        with OneLineErrors():
            return to_json(self._stream.latest_offsets(from_json(start), most))

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        return to_json(self._stream.end_offsets()) or None

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        with OneLineErrors():
            self._stream.fix_end()
