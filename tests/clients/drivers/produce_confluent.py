"""confluent-kafka's producer, librdkafka; options: its codec, and "idempotent"."""

from __future__ import annotations

from confluent_kafka import Producer
from producer_driver import Producing


def main() -> None:
    told = Producing()
    codec, *idempotent = told.options
    settings: dict[str, object] = {
        "bootstrap.servers": told.bootstrap,
        "compression.type": codec,
        "enable.idempotence": bool(idempotent),
        "acks": "all",
        "linger.ms": 5,
    }
    if told.version is not None:
        settings |= {"api.version.request": False, "broker.version.fallback": told.version}
    failures: list[object] = []
    producer = Producer(settings)
    for key, value in told.records():
        producer.produce(
            told.topic, value, key, 0, on_delivery=lambda error, _: error and failures.append(error)
        )
    assert producer.flush(30) == 0
    assert not failures, failures[:3]


if __name__ == "__main__":
    main()
