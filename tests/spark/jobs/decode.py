"""A job on executors without kafkafmt, in four ways: Arrow batches, an RDD, a data source, column functions.

Prints a line each.

Argument: `register`, which ships kafkafmt; or `submitted`, where spark-submit has done that.
"""

import sys
from types import ModuleType

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.functions import explode, udf

COUNT = 40


def encoded(first):
    import kafkafmt as kf

    builder = kf.RecordBatchBuilder(codec=kf.Codec.ZSTD, base_offset=first)
    for offset in range(first, first + 10):
        builder.append(1, b"key", b"value-%d" % offset)
    return builder.build()


def decoded(data):
    """A batch of offsets, and where kafkafmt is."""
    import pyarrow as pa

    import kafkafmt as kf

    offsets = kf.MemoryRecords(data).to_arrow(["offset"]).column("offset").combine_chunks()
    where = pa.repeat(pa.scalar(kf.__file__), len(offsets))
    return pa.RecordBatch.from_arrays([offsets, where], ["offset", "module"])


def decode_arrow(batches):
    for batch in batches:
        for data in batch["data"].to_pylist():
            yield decoded(data)


def decode_rows(rows):
    for data in rows:
        yield from decoded(data).to_pylist()


class StandIn(DataSource):
    """What takes the place of kafkafmt's source: planned and read where kafkafmt is only shipped."""

    @classmethod
    def name(cls):
        return "stand_in"

    def schema(self):
        return "offset long, module string"

    def reader(self, schema):
        return StandInReader()


class StandInReader(DataSourceReader):
    def partitions(self):
        return [InputPartition(encoded(first)) for first in range(0, COUNT, 10)]

    def read(self, partition):
        yield decoded(partition.value)


def with_functions(frame):
    """What kafkafmt's own function decodes, and where kafkafmt is."""
    from kafkafmt.spark import functions

    @udf("string")
    def module(data):
        import kafkafmt as kf

        return kf.__file__

    records = frame.select(
        functions.decode("data", ["offset"]).alias("records"), module("data").alias("module")
    )
    return records.select(explode("records").alias("record"), "module").select("record.offset", "module")


def tell(name, rows):
    rows = [(row["offset"], row["module"]) for row in rows]
    assert sorted(offset for offset, _ in rows) == list(range(COUNT)), rows
    print(name, *sorted({module for _, module in rows}), flush=True)


def main(how):
    spark = SparkSession.builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    if how == "register":
        from kafkafmt.spark import register

        source = ModuleType("kafkafmt.spark.data_source")
        source.KafkafmtDataSource = StandIn
        sys.modules[source.__name__] = source
        register(spark)
        register(spark)
    else:
        spark.dataSource.register(StandIn)
    data = [encoded(first) for first in range(0, COUNT, 10)]
    schema = "offset long, module string"
    frame = spark.createDataFrame([(bytes(each),) for each in data], "data binary").repartition(4)
    tell("arrow", frame.mapInArrow(decode_arrow, schema).collect())
    tell("rdd", spark.sparkContext.parallelize(data, 4).mapPartitions(decode_rows).collect())
    tell("source", spark.read.format("stand_in").load().collect())
    tell("functions", with_functions(frame).collect())
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
