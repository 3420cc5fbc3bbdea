"""A conversion whose executor is killed in the middle of a commit. Prints a JSON report of each segment.

Arguments: source, target, a folder whose `sitecustomize` kills, and a file that is there once it did.
"""

import json
import sys

from pyspark.sql import SparkSession

import kafkafmt.spark


def main(source, target, folder, marker):
    builder = SparkSession.builder.master("local-cluster[2,1,1024]").config("spark.ui.enabled", "false")
    spark = (
        builder.config("spark.executorEnv.PYTHONPATH", folder)
        .config("spark.executorEnv.KILL_ONCE", marker)
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    reports = kafkafmt.spark.convert(spark, source, target, to_magic=1, codec="gzip")
    print(json.dumps([row.asDict() for row in reports.select("path", "status", "error").collect()]))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
