"""For streams only. Choose the reader for the installed PySpark: limits need PySpark 4.2 or later."""

from __future__ import annotations

from importlib.util import find_spec

from kafkafmt.spark.stream_reader import StreamReader, StreamSource


def stream_reader(source: StreamSource) -> StreamReader:
    """Return a reader with limits if the installed PySpark supports them, else one without."""
    if find_spec("pyspark.sql.streaming.datasource") is None:
        return StreamReader(source)
    from kafkafmt.spark.limited_streaming import LimitedStreamReader

    return LimitedStreamReader(source)
