"""A running broker that has the logs that are read for its own."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.broker.broker import Broker

from bench.contenders import JVM_OPTIONS
from bench.spark.logs import ROOT, Topic


@contextmanager
def broker_of(topics: list[Topic], partitions: int) -> Iterator[Broker]:
    """Segments are linked into its folder, not copied; it is set up as the tests' broker, with a server's JVM."""
    with tempfile.TemporaryDirectory(dir=ROOT, prefix="broker-") as folder:
        broker = Broker(Path(folder), {"log.index.size.max.bytes": 10 << 20}, JVM_OPTIONS)
        with broker:
            for topic in topics:
                broker.create_topic(topic.name, partitions)
            broker.stop()
            for topic in topics:
                for partition in topic.stored(partitions):
                    _link(partition, broker.log_dir / partition.name)
            broker.start()
            yield broker


def _link(source: Path, folder: Path) -> None:
    for file in folder.glob("0*"):
        file.unlink()
    for file in source.iterdir():
        if file.suffix == ".log":
            os.link(file, folder / file.name)
        else:  # which the broker enlarges
            shutil.copy(file, folder / file.name)
