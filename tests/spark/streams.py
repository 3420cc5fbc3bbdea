"""Streaming queries on a real Spark, and what they read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame, SparkSession

if TYPE_CHECKING:
    from pyspark.sql.streaming import StreamingQuery
    from typing_extensions import Self


class Stream:
    """Queries over `logs` with one checkpoint; the rows of each micro-batch, by its number, are kept.

    A context manager that stops those that it started.
    """

    def __init__(self, spark: SparkSession, logs: Path, checkpoint: Path) -> None:
        self.spark, self.logs, self.checkpoint = spark, logs, checkpoint
        self.kept: dict[int, list[tuple[Any, ...]]] = {}
        self.started: list[StreamingQuery] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for query in self.started:
            query.stop()

    def start(self, trigger: dict[str, Any] | None = None, **options: object) -> StreamingQuery:
        given = {"columns": "topic,partition,offset", **options}
        frame = self.spark.readStream.format("kafkafmt").options(**given).load(str(self.logs))
        writer = frame.writeStream.foreachBatch(self._keep).option("checkpointLocation", str(self.checkpoint))
        self.started.append((writer.trigger(**trigger) if trigger else writer).start())
        return self.started[-1]

    def run(self, **options: object) -> StreamingQuery:
        """A query that ends once it has read what is there."""
        query = self.start({"availableNow": True}, **options)
        query.awaitTermination()
        return query

    def _keep(self, frame: DataFrame, number: int) -> None:
        assert number not in self.kept
        self.kept[number] = sorted(map(tuple, frame.collect()))

    def micro_batches(self) -> list[list[tuple[Any, ...]]]:
        """The rows of each micro-batch that had some."""
        return [rows for _, rows in sorted(self.kept.items()) if rows]

    def offsets(self) -> list[int]:
        """Of all rows, in order; of one partition."""
        return [offset for rows in self.micro_batches() for *_, offset in rows]

    def written_offsets(self) -> list[Any]:
        """What the checkpoint has for each micro-batch."""
        files = sorted(
            (file for file in (self.checkpoint / "offsets").glob("[0-9]*")), key=lambda file: int(file.name)
        )
        return [json.loads(file.read_text().splitlines()[2]) for file in files]
