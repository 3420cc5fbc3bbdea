#!/usr/bin/env python3
"""Keep the files that real brokers of Kafka 3.9 and 4 leave beside the segments of a small log.

    python tests/data/make_broker_files.py       writes tests/data/broker_files/ anew

`<line>/` is the data directory after a clean stop: its own files, the folder of `orders-0` with its segments, and of
`__cluster_metadata-0` the small files. `orders` has committed and aborted transactions over several segments, deleted
records and a compacted neighbour. `<line>/dynamic-quorum/` is of a broker whose quorum has KRaft version 1 (KIP-853).
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from kafka.protocol.admin import DeleteRecordsRequest  # noqa: E402

from broker.broker import HOST, KAFKA_3, KAFKA_4, Broker, Kafka, _free_ports  # noqa: E402
from broker.client import JavaClient  # noqa: E402
from data.make import Orders, make_transactions  # noqa: E402
from oracle.kafka import KafkaOracle  # noqa: E402

FILES = HERE / "broker_files"
DENSE = {"segment.bytes": 4000, "index.interval.bytes": 400, "file.delete.delay.ms": 60_000}
COMPACTED = {"cleanup.policy": "compact", "segment.bytes": 1000, "min.cleanable.dirty.ratio": 0.01}
# The settings of 4.x refuse segments below 1 MiB, but for this one.
DENSE_4 = {"internal.segment.bytes": 4000, "index.interval.bytes": 400}
COMPACTED_4 = {"cleanup.policy": "compact", "internal.segment.bytes": 1000, "min.cleanable.dirty.ratio": 0.01}
DELETED_BELOW = 20


def fill(client: JavaClient, broker: Broker) -> None:
    """Fill `orders` and `customers`, delete the first records of `orders`, and wait for the cleaner."""
    is_3 = broker.kafka is KAFKA_3
    broker.create_topic("orders", config=DENSE if is_3 else DENSE_4)
    broker.create_topic("customers", config=COMPACTED if is_3 else COMPACTED_4)
    make_transactions(client, "orders")
    orders = Orders(7)
    with client.producer("none", enable_idempotence="false") as producer:
        for _ in range(8):
            client.send(producer, "customers", orders.orders(8))
    broker.wait_for_cleaner("customers")
    spec = DeleteRecordsRequest.DeleteRecordsTopic
    partition = spec.DeleteRecordsPartition(partition_index=0, offset=DELETED_BELOW)
    topics = [spec(name="orders", partitions=[partition])]
    broker.request(DeleteRecordsRequest(topics=topics, timeout_ms=30_000), 1)


def keep(broker: Broker, target: Path) -> None:
    """Copy the files that are to be kept of a stopped broker."""
    shutil.copytree(broker.log_dir / "orders-0", target / "orders-0")
    metadata = target / "__cluster_metadata-0"
    metadata.mkdir()
    for file in broker.log_dir.iterdir():
        if file.is_file():
            shutil.copy(file, target)
    for file in (broker.log_dir / "__cluster_metadata-0").iterdir():
        if file.suffix not in (".log", ".index", ".timeindex"):
            shutil.copy(file, metadata)


def keep_dynamic_quorum(folder: Path, target: Path, kafka: Kafka) -> None:
    """Format a controller with a quorum of KRaft version 1, run it until it has a leader, and keep its files."""
    port = _free_ports(1)[0]
    data = folder / "dynamic"
    properties = folder / "dynamic.properties"
    properties.write_text(
        "process.roles=controller\nnode.id=5\ncontroller.listener.names=CONTROLLER\n"
        f"listeners=CONTROLLER://{HOST}:{port}\nlistener.security.protocol.map=CONTROLLER:PLAINTEXT\n"
        f"controller.quorum.bootstrap.servers={HOST}:{port}\nlog.dirs={data}\n"
    )
    java = kafka.java("quiet.properties")
    format_command = ["kafka.tools.StorageTool", "format", "--standalone", "-t", "hs1Vw0UsRPG1R5jOsDkGUA"]
    subprocess.run([*java, *format_command, "-c", str(properties)], check=True)
    process = subprocess.Popen([*java, "kafka.Kafka", str(properties)])
    state = data / "__cluster_metadata-0" / "quorum-state"
    try:
        while process.poll() is None and not (state.exists() and '"leaderId":5' in state.read_text()):
            pass
    finally:
        process.terminate()
        process.wait()
    target.mkdir(parents=True)
    for file in (state, data / "meta.properties", data / "bootstrap.checkpoint"):
        if file.exists():
            shutil.copy(file, target)
    for file in state.parent.glob("*.checkpoint"):
        shutil.copy(file, target)


def main() -> None:
    shutil.rmtree(FILES, ignore_errors=True)
    for name, kafka in (("3.9", KAFKA_3), ("4.3", KAFKA_4)):
        target = FILES / name
        target.mkdir(parents=True)
        with tempfile.TemporaryDirectory(prefix="kafkafmt-data-") as folder:
            broker = Broker(Path(folder), {"log.roll.hours": 1_000_000}, kafka=kafka)
            with KafkaOracle() as oracle, broker, JavaClient(oracle.jvm, broker) as client:
                fill(client, broker)
            keep(broker, target)
            keep_dynamic_quorum(Path(folder), target / "dynamic-quorum", kafka)


if __name__ == "__main__":
    main()
