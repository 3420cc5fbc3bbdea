"""A server of Spark Connect in a process of its own, and sessions of it."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_CLASS = "org.apache.spark.sql.connect.service.SparkConnectServer"
_STARTED = re.compile(r"Spark Connect server started at: (\S+:\d+)")
_CONF = {
    "spark.connect.grpc.binding.address": "127.0.0.1",
    "spark.connect.grpc.binding.port": "0",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
}


@contextlib.contextmanager
def connect_server(folder: Path) -> Iterator[str]:
    """The address of a server whose log and warehouse are in this folder."""
    import pyspark

    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    conf = {**_CONF, "spark.sql.warehouse.dir": str(folder / "warehouse")}
    settings = [part for name, value in conf.items() for part in ("--conf", f"{name}={value}")]
    command = [submit, "--class", _CLASS, "--master", "local[2]", *settings, "spark-internal"]
    environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
    log = folder / "server.log"
    with (
        log.open("wb") as output,
        subprocess.Popen(
            command, cwd=folder, env=environment, stderr=subprocess.PIPE, stdout=output
        ) as server,
    ):
        try:
            yield _address(server, log)
        finally:
            server.terminate()


def _address(server: subprocess.Popen[bytes], log: Path) -> str:
    """Wait for the address, and let the rest of the server's messages go on to its log."""
    assert server.stderr is not None
    told = []
    for line in server.stderr:
        told.append(line.decode("utf-8", "replace"))
        found = _STARTED.search(told[-1])
        if found is not None:
            subprocess.Popen(["tee", "-a", log], stdin=server.stderr, stdout=subprocess.DEVNULL)
            return found[1]
    raise AssertionError("".join(told[-20:]))


@contextlib.contextmanager
def connect_session(address: str) -> Iterator[SparkSession]:
    """A session of Spark Connect. Classic sessions of this process are of no use during the block."""
    from pyspark.sql.connect.session import SparkSession

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARK_CONNECT_MODE_ENABLED", "1")
        session = SparkSession.builder.remote(f"sc://{address}").create()
        try:
            yield session  # type: ignore[misc]  # it has the methods of the classic one
        finally:
            session.stop()
