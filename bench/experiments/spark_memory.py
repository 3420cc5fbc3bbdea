"""A segment of 4 GiB, and one with as much in it, are read by one Spark task whose Python may take 1 GiB.

That is `spark.executor.pyspark.memory`, a limit on virtual memory. The first is larger than those of brokers, the other
is compressed. Records and batches are counted, and the bytes of values and batches added up. Exits with status 1 where
a figure is not the segment's.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from bench import BUILD, ROOT
from bench.results import Table, report
from bench.segments import MIB, Segment, StoredSegment, repeated, stored
from kafkafmt import Codec

LIMIT = "1g"
SIZE = 4096 * MIB  # before compression
VALUE_SIZE = 1024


@dataclass(frozen=True)
class Repeated:
    """The batches of a stored segment, `copies` times over."""

    source: StoredSegment
    copies: int

    @property
    def size_in_bytes(self) -> int:
        return self.source.size_in_bytes * self.copies

    @property
    def lines(self) -> list[list[str]]:
        """What is to be read in it: the unit, how many, and their bytes."""
        records, batches = self.source.records * self.copies, self.source.batches * self.copies
        facts = ("records", records, records * VALUE_SIZE), ("batches", batches, self.size_in_bytes)
        return [list(map(str, line)) for line in facts]


def read(path: str) -> None:
    """In a process of its own, and an executor's: print the unit, the count, the bytes and the seconds."""
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as f

    from kafkafmt.spark import register

    builder = SparkSession.builder.master("local-cluster[1,1,1024]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.ui.showConsoleProgress", "false")
    spark = builder.config("spark.executor.pyspark.memory", LIMIT).getOrCreate()
    register(spark, ship=False)
    reader = spark.read.format("kafkafmt").option("splitBytes", "1t")
    for unit, column in (("records", "value"), ("batches", "batch")):
        started = time.monotonic()
        frame = reader.option("unit", unit).load(path)
        found = frame.agg(f.count("*"), f.sum(f.length(column))).collect()[0]
        print(unit, *found, f"{time.monotonic() - started:.1f}", flush=True)
    spark.stop()


def measure(codec: Codec) -> tuple[Repeated, list[list[str]]]:
    """The segment, and what was read in it."""
    source = stored(Segment(codec, VALUE_SIZE))
    segment = Repeated(source, -(-SIZE // source.raw_bytes))
    with tempfile.TemporaryDirectory(dir=BUILD) as folder:
        path = Path(folder) / "memory-0" / "00000000000000000000.log"
        path.parent.mkdir()
        repeated(source, segment.copies, path)
        done = subprocess.run(
            [sys.executable, "-m", "bench.experiments.spark_memory", str(path)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
            check=True,
        )
    return segment, [line.split() for line in done.stdout.splitlines()]


def main() -> int:
    failed = False
    tables = []
    for codec in (Codec.NONE, Codec.ZSTD):
        segment, lines = measure(codec)
        is_right = [line[:-1] for line in lines] == segment.lines
        failed |= not is_right
        name = f"{codec.name.lower()}, {segment.size_in_bytes / MIB:.0f} MiB"
        title = f"one task, {LIMIT} of memory: {name}: {'right' if is_right else 'WRONG'}"
        tables.append(Table(codec.name.lower(), title, [("unit", "count", "bytes", "seconds"), *lines]))
    report("spark_memory", tables, command="python -m bench.experiments.spark_memory")
    return int(failed)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        read(sys.argv[1])
    else:
        sys.exit(main())
