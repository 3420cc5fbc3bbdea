"""The endpoint is killed while idempotent producers write to it: what was acknowledged is there, once and in order."""

from __future__ import annotations

import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from confluent_kafka import Producer

from endpoints.acknowledged import Acknowledged
from endpoints.endpoint_process import EndpointProcess, lasting_address
from kafkafmt.log import PartitionLog
from kafkafmt.log.topic_configs import TopicConfig, set_topic_config

RECORDS, PARTITIONS, KILLS, SECONDS = 6000, 2, 3, 120


def produce(bootstrap: str, sent: Acknowledged) -> None:
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "compression.type": "lz4",
            "batch.num.messages": 20,
            "linger.ms": 0,
            "retry.backoff.ms": 20,
            "reconnect.backoff.ms": 20,
            "reconnect.backoff.max.ms": 200,
            "log_level": 0,
        }
    )
    for number in range(RECORDS):
        for partition in range(PARTITIONS):
            producer.produce("t", b"%d" % number, partition=partition, on_delivery=sent.note)
        producer.poll(0)
    assert producer.flush(SECONDS) == 0


@pytest.mark.full
@pytest.mark.clients
def test_records_when_the_endpoint_is_killed_then_those_acknowledged_are_there_once(tmp_path: Path) -> None:
    set_topic_config(tmp_path, "t", TopicConfig(PARTITIONS, {"segment.bytes": "20000"}))
    sent = Acknowledged()
    with (
        ThreadPoolExecutor(1) as threads,
        EndpointProcess(tmp_path, "--allow-produce", listen=lasting_address()) as endpoint,
    ):
        producing = threads.submit(produce, endpoint.address, sent)
        for kill in range(1, KILLS + 1):
            sent.wait_for(kill * RECORDS * PARTITIONS // (KILLS + 1), SECONDS)
            endpoint.send_signal(signal.SIGKILL)
            endpoint.wait()
            endpoint.start()
        producing.result(SECONDS)
    assert sent.failures == []
    for partition in range(PARTITIONS):
        found = {int(r.value or b""): r.offset for r in PartitionLog(tmp_path / f"t-{partition}").records()}
        records = [int(r.value or b"") for r in PartitionLog(tmp_path / f"t-{partition}").records()]
        assert records == list(range(RECORDS))
        assert found == {number: sent.offsets[partition, number] for number in range(RECORDS)}
