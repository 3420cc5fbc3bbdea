"""What the tests of the data source share: one Spark session for a worker."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

collect_ignore = [] if find_spec("pyspark") else ["test_reading.py", "test_source.py"]


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A local Spark with two cores that knows the data source."""
    from pyspark.sql import SparkSession

    from kafkafmt.spark.source import KafkafmtDataSource

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(os.environ, "SPARK_LOCAL_IP", "127.0.0.1")  # as a machine need not know its own name
        patch.setitem(os.environ, "PYSPARK_PYTHON", sys.executable)
        builder = SparkSession.builder.master("local[2]").appName("kafkafmt tests")
        session = (
            builder.config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.sql.session.timeZone", "UTC")
            .getOrCreate()
        )
        session.sparkContext.setLogLevel("OFF")
        session.dataSource.register(KafkafmtDataSource)
        yield session
        session.stop()
