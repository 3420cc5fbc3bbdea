"""Spark takes the settings of a plan, and a query with state runs on its RocksDB stores with them.

A Spark of its own, since those of a running one stay as they are.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kafkafmt import MemoryPlan
from kafkafmt.spark import spark_conf

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]

QUERY = """
import json, sys
from pyspark.sql import SparkSession

settings = json.loads(sys.argv[1])
folder = sys.argv[2]
builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
for name, value in {**settings, "spark.sql.shuffle.partitions": "2"}.items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
spark.sparkContext.setLogLevel("OFF")
words = spark.readStream.text(folder + "/words").groupBy("value").count()
query = words.writeStream.format("memory").queryName("counts").outputMode("complete")
query = query.trigger(availableNow=True).option("checkpointLocation", folder + "/checkpoint").start()
query.awaitTermination()
counts = {row["value"]: row["count"] for row in spark.table("counts").collect()}
[operator] = query.lastProgress["stateOperators"]
found = {name: spark.conf.get(name) for name in settings}
print(json.dumps({"found": found, "counts": counts, "metrics": operator["customMetrics"]}))
spark.stop()
"""


@pytest.mark.full
def test_spark_when_started_with_a_plans_settings_then_it_has_them_and_counts_words_with_rocksdb(
    tmp_path: Path,
):
    (tmp_path / "words").mkdir()
    (tmp_path / "words" / "some.txt").write_text("a\nb\na\n")
    settings = spark_conf(MemoryPlan("2g", 2))
    environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
    result = subprocess.run(
        [sys.executable, "-c", QUERY, json.dumps(settings), str(tmp_path)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    told = json.loads(result.stdout.splitlines()[-1])
    assert told["found"] == settings
    assert told["counts"] == {"a": 2, "b": 1}
    assert "rocksdbTotalBytesWritten" in told["metrics"]
