"""A broker with tiered storage: Kafka's LocalTieredStorage copies segments that are no longer active to a folder."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from broker import jars
from broker.broker import JVM_OPTIONS, KAFKA_3, KAFKA_4, Broker, Kafka

WAIT_SECONDS = 90
_PLUGIN = "org.apache.kafka.server.log.remote.storage.LocalTieredStorage"
# A topic's configuration. All but the active segment are copied, and deleted locally as soon as they are.
TOPIC_CONFIG = {
    "remote.storage.enable": "true",
    "local.retention.bytes": 1,
    "retention.bytes": -1,
    "index.interval.bytes": 400,
}


@dataclass(frozen=True)
class TieredKafka(Kafka):
    """A line of Kafka with the jars of LocalTieredStorage."""

    plugin: jars.JarSet = jars.LOCAL_TIERED_4

    def java(self, log4j: str, jvm_options: Sequence[str] = JVM_OPTIONS) -> list[str]:
        *command, classpath = super().java(log4j, jvm_options)
        return [*command, os.pathsep.join((classpath, self.plugin.classpath()))]


TIERED_KAFKA_3 = TieredKafka(KAFKA_3.name, KAFKA_3.jar_set, KAFKA_3.dump_log, jars.LOCAL_TIERED_3)
TIERED_KAFKA_4 = TieredKafka(KAFKA_4.name, KAFKA_4.jar_set, KAFKA_4.dump_log, jars.LOCAL_TIERED_4)


def tiered_settings(store: Path) -> dict[str, Any]:
    """Return the settings of a broker that copies segments into the folder `kafka-tiered-storage` of `store`."""
    return {
        "remote.log.storage.system.enable": "true",
        "remote.log.storage.manager.class.name": _PLUGIN,
        "remote.log.storage.manager.impl.prefix": "rsm.config.",
        "rsm.config.dir": store,
        "remote.log.metadata.manager.listener.name": "PLAINTEXT",
        "rlmm.config.remote.log.metadata.topic.replication.factor": 1,
        "rlmm.config.remote.log.metadata.topic.num.partitions": 1,
        "remote.log.manager.task.interval.ms": 200,
        "log.retention.check.interval.ms": 200,
        "log.initial.task.delay.ms": 100,
    }


def tiered_broker(folder: Path, kafka: TieredKafka, store: Path) -> Broker:
    """Return a broker with tiered storage, not started."""
    return Broker(folder, tiered_settings(store), kafka=kafka)


def wait_until_tiered(broker: Broker, topic: str, partition: int = 0) -> int:
    """Return the base offset of the active segment after the log has no other local segment."""
    folder = broker.log_dir / f"{topic}-{partition}"
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        offsets = sorted(int(log.stem) for log in folder.glob("*.log"))
        if len(offsets) == 1 and offsets[0] > 0:
            return offsets[0]
        if time.monotonic() > deadline:
            raise TimeoutError(f"{topic}-{partition} has the segments {offsets}:\n{broker.log_tail()}")
        time.sleep(0.05)
