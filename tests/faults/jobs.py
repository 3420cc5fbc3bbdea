"""Jobs of the harness that are no command: what the Spark sink does at a driver and in its tasks, without a JVM."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

from kafkafmt.spark.sink.columns import InputColumns
from kafkafmt.spark.sink.commit import Commit, recover
from kafkafmt.spark.sink.manifest import StreamBatch
from kafkafmt.spark.sink.options import WriteOptions
from kafkafmt.spark.sink.staging import new_attempt, new_name
from kafkafmt.spark.sink.writing import write_task

SINK_ROWS = [(number % 2, b"%d" % number) for number in range(40)]


def sink(target: str) -> None:
    """Two micro-batches of a stream, each of one task."""
    from spark.writes import schema_of

    folder = Path(target)
    options = WriteOptions(folder, topic="orders", batch_size=200, segment_bytes=500)
    columns = InputColumns.of(options, schema_of("partition", "value"))
    folder.mkdir(parents=True, exist_ok=True)
    recover(folder, remove_staging=True)  # no driver is at work: the one before was killed
    for number in range(2):
        name = new_name()
        attempt = new_attempt(folder, name, None)
        rows = SINK_ROWS[number * 20 : number * 20 + 20]
        table = pa.record_batch(
            {
                "partition": pa.array([partition for partition, _ in rows], pa.int32()),
                "value": pa.array([value for _, value in rows], pa.binary()),
            }
        )
        segments = write_task([table], attempt, columns, options)
        Commit(folder, keeps_offsets=False).run(name, segments, StreamBatch("query", number))


JOBS: dict[str, Callable[..., None]] = {"sink": sink}
