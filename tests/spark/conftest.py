"""What the tests of the data source share: one Spark session and one S3 server for a worker."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, urlencode

import pytest

from broker.jars import SPARK_KAFKA
from file_systems import s3_server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOGS = Path(__file__).parents[1] / "data" / "logs"
BUCKET = "bucket"

_NEED_PYSPARK = [
    "sink",
    "test_docs.py",
    "test_functions.py",
    "test_jobs.py",
    "test_log_stream.py",
    "test_options.py",
    "test_reading.py",
    "test_source.py",
    "test_streaming.py",
]
collect_ignore = [] if find_spec("pyspark") else _NEED_PYSPARK


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A local Spark with two cores that knows the data source, and Spark's own Kafka source where its jars are."""
    from pyspark.sql import SparkSession

    from kafkafmt.spark.data_source import KafkafmtDataSource

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(os.environ, "SPARK_LOCAL_IP", "127.0.0.1")  # as a machine need not know its own name
        patch.setitem(os.environ, "PYSPARK_PYTHON", sys.executable)
        builder = SparkSession.builder.master("local[2]").appName("kafkafmt tests")
        session = (
            builder.config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.sql.session.timeZone", "UTC")
            .config("spark.jars", ",".join(map(str, SPARK_KAFKA.path.glob("*.jar"))))
            .getOrCreate()
        )
        session.sparkContext.setLogLevel("OFF")
        session.dataSource.register(KafkafmtDataSource)
        yield session
        session.stop()


@pytest.fixture(scope="session")
def s3_options() -> Iterator[dict[str, str]]:
    """An S3 server on loopback, one for a worker: the options that reach it."""
    with s3_server() as options:
        yield options


@pytest.fixture(scope="session")
def s3_logs(s3_options: Mapping[str, str]) -> str:
    """The committed logs in a bucket."""
    from pyarrow import fs

    root, options = (
        f"{s3_options['access_key']}:{quote(s3_options['secret_key'], safe='')}@",
        dict(s3_options),
    )
    del options["access_key"], options["secret_key"]
    uri = f"s3://{root}{BUCKET}/?{urlencode(options)}"
    store, _ = fs.FileSystem.from_uri(f"{uri}&allow_bucket_creation=true")
    store.create_dir(BUCKET)
    fs.copy_files(str(LOGS), f"{BUCKET}/my logs", destination_filesystem=store)
    return f"s3://{BUCKET}/my logs"
