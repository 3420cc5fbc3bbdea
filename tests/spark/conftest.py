"""What the tests of the data source share: one Spark session and one S3 server for a worker."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from broker.jars import SPARK_KAFKA

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CONF = Path(__file__).with_name("conf")
# Of JVMs that live for seconds: the first compiler alone makes them take a quarter less of the processor.
LAUNCHER_OPTIONS = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"

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
