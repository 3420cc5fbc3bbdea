"""A job on executors without kafkafmt, in four ways: Arrow batches, an RDD, column functions, the data source.

Prints a line each.

Arguments: `register`, which ships kafkafmt, or `submitted`, where spark-submit has done that; and paths that the data
source is to read. Of these it prints how many records there are, and how many tasks read them.
"""

import sys

from pyspark.sql import SparkSession
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


def read(spark, path):
    frame = spark.read.format("kafkafmt").option("columns", "value").option("splitBytes", "1k").load(path)
    print("source", frame.where("length(value) >= 0").count(), frame.rdd.getNumPartitions(), flush=True)


def main(how, *paths):
    spark = SparkSession.builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    if how == "register":
        from kafkafmt.spark import register

        register(spark)
        register(spark)
    elif paths:
        from kafkafmt.spark.data_source import KafkafmtDataSource

        spark.dataSource.register(KafkafmtDataSource)
    data = [encoded(first) for first in range(0, COUNT, 10)]
    schema = "offset long, module string"
    frame = spark.createDataFrame([(bytes(each),) for each in data], "data binary").repartition(4)
    tell("arrow", frame.mapInArrow(decode_arrow, schema).collect())
    tell("rdd", spark.sparkContext.parallelize(data, 4).mapPartitions(decode_rows).collect())
    tell("functions", with_functions(frame).collect())
    for path in paths:
        read(spark, path)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
