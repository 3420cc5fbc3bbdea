"""An export on a cluster, or through Spark Connect. Prints a JSON report of each table.

Arguments: source, target, format, master. If there is a folder of a `sitecustomize` that kills an executor, and a file
that is there once it did, they follow.
"""

import json
import sys

from pyspark.sql import SparkSession

import kafkafmt.spark
from export.scans import folder_scan


def main(source, target, kind, master, folder=None, marker=None):
    builder = SparkSession.builder.config("spark.ui.enabled", "false")
    builder = builder.remote("local[2]") if master == "connect" else builder.master(master)
    if folder is not None:
        paths = [folder, *(path for path in sys.path if path.endswith("tests"))]
        builder = builder.config("spark.executorEnv.PYTHONPATH", ":".join(paths))
        builder = builder.config("spark.executorEnv.KILL_ONCE", marker)
    spark = builder.getOrCreate()
    rows = kafkafmt.spark.export(spark, folder_scan(source), target, format=kind).collect()
    print(json.dumps([row.asDict() for row in rows]))
    spark.stop()


if __name__ == "__main__":
    from pathlib import Path

    main(Path(sys.argv[1]), *sys.argv[2:])
