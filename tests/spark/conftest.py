"""What the tests of the data source share: one Spark session and one S3 server for a worker."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from broker.jars import SPARK_KAFKA
from file_systems import s3_server

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem
    from pyspark.sql import SparkSession

LOGS = Path(__file__).parents[1] / "data" / "logs"
CONF = Path(__file__).with_name("conf")
# Of JVMs that live for seconds: the first compiler alone makes them take a quarter less of the processor.
LAUNCHER_OPTIONS = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
BUCKET = "bucket"

collect_ignore_glob = [] if find_spec("pyspark") else ["test_*.py", "kafka/*", "sink/*"]


@pytest.fixture(scope="session", autouse=True)
def spark_conf() -> Iterator[None]:
    """Every Spark of these tests, those in processes of their own too, is configured by CONF alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(os.environ, "SPARK_CONF_DIR", str(CONF))  # `java-opts`: of drivers and executors
        patch.setitem(os.environ, "SPARK_LAUNCHER_OPTS", LAUNCHER_OPTIONS)
        yield


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A local Spark with two cores that knows the data sources, and Spark's own Kafka source where its jars are."""
    from pyspark.sql import SparkSession

    from kafkafmt.spark.data_source import SOURCES

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
        for source in SOURCES:
            session.dataSource.register(source)
        yield session
        session.stop()


@pytest.fixture(scope="session")
def s3_options() -> Iterator[dict[str, str]]:
    """An S3 server on loopback, one for a worker: the options that reach it."""
    with s3_server() as options:
        yield options


@pytest.fixture(scope="session")
def s3(s3_options: Mapping[str, str]) -> FileSystem:
    """That server, with the bucket BUCKET in it; others may be made."""
    from pyarrow import fs

    store = fs.S3FileSystem(**s3_options, allow_bucket_creation=True)
    store.create_dir(BUCKET)
    return store


@pytest.fixture(scope="session")
def s3_logs(s3: FileSystem) -> str:
    """The committed logs in a bucket."""
    from pyarrow import fs

    fs.copy_files(str(LOGS), f"{BUCKET}/my logs", destination_filesystem=s3)
    return f"s3://{BUCKET}/my logs"
