"""kafka-python's producer, current or 1.3.5; options: its codec, and "idempotent"."""

from __future__ import annotations

import sys
from typing import Any

from old_kafka_python import import_past_init
from producer_driver import Producing


def main() -> None:
    told = Producing()
    codec, *idempotent = told.options
    more: dict[str, Any] = {"enable_idempotence": bool(idempotent)}
    if "kafka-python-1.3.5" in "".join(sys.path):
        more = {}
        import_past_init()
    from kafka.producer.kafka import KafkaProducer

    if told.version is not None:
        more["api_version"] = tuple(map(int, told.version.split(".")))
    producer = KafkaProducer(
        bootstrap_servers=told.bootstrap,
        acks="all",
        linger_ms=5,
        compression_type=None if codec == "none" else codec,
        **more,
    )
    futures = [producer.send(told.topic, key=key, value=value, partition=0) for key, value in told.records()]
    offsets = [future.get(timeout=30).offset for future in futures]
    assert offsets == list(range(offsets[0], offsets[0] + told.count)), offsets
    producer.close()


if __name__ == "__main__":
    main()
