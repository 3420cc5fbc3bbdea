"""A DataFrame of a scan: the Python workers read and decode, so undecoded bytes never cross into the JVM."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from inspect import signature
from typing import TYPE_CHECKING, Any

from kafkafmt._util.user_errors import UserError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from kafkafmt.scanning.scan import Scan
    from kafkafmt.spark.jobs.running import ArrowFunction

_SPLIT_BYTES = 64 * 1024 * 1024


def read_scan(spark: SparkSession, scan: Scan, *, split_bytes: int = _SPLIT_BYTES) -> DataFrame:
    """Return a DataFrame of the rows of a scan. The executors read and decode them when the DataFrame is used.

    The ranges of the scan are fixed now, so each use has the same rows. Spark does not tell the scan which columns it
    needs. Select them with `columns=` of the scan, and fields of decoded values with `reader_schema` of the decoding.

    Args:
        spark: a session, also of Spark Connect. `kafkafmt.spark.register` ships kafkafmt to its executors.
        scan: `kafkafmt.scan(...)`, with or without `decode=`.
        split_bytes: about the stored bytes that a task reads.

    Timestamps have microseconds. Raises UserError for a column whose type Spark does not have, and as `Scan.tasks`.
    """
    import pyarrow as pa
    from pyspark.errors import PySparkException
    from pyspark.sql.pandas.types import from_arrow_schema

    try:
        schema = from_arrow_schema(scan.schema, prefer_timestamp_ntz=True)
        stored = _task_schema(schema)
    except PySparkException as error:
        raise UserError(f"a column has a type that Spark does not have: {error.getMessage()}") from None
    wanted = pa.schema([pa.field(field.name, field.type) for field in stored])
    tasks = scan.tasks(split_bytes)
    numbers = spark.range(0, len(tasks), 1, max(len(tasks), 1))
    return numbers.mapInArrow(_reader(pickle.dumps(tasks), wanted), schema)


def _task_schema(schema: StructType) -> pa.Schema:
    """Return the columns as Spark takes them from a task, with timestamps in UTC."""
    from pyspark.sql.pandas.types import to_arrow_schema

    # PySpark 4.1 does not have this argument, and returns timestamps in UTC.
    zone: dict[str, Any] = {"timezone": "UTC"} if "timezone" in signature(to_arrow_schema).parameters else {}
    return to_arrow_schema(schema, **zone)


def _reader(pickled: bytes, schema: pa.Schema) -> ArrowFunction:
    """Return the function of a Spark task. It takes numbers of tasks of the scan, and yields their rows."""

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        from kafkafmt.columns.arrow import int64_values
        from kafkafmt.decode.evolving import evolved

        tasks = pickle.loads(pickled)
        for batch in batches:
            for number in int64_values(batch.column(0)).tolist():
                for rows in tasks[number].read():
                    arrays = [
                        evolved(array, field.type) for array, field in zip(rows.columns, schema, strict=True)
                    ]
                    yield pa.RecordBatch.from_arrays(arrays, schema=schema)

    return read
