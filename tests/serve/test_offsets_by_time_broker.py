"""ListOffsets v0 at a timestamp: an endpoint answers as Kafka 3.9 does for the same segments."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from kafka import KafkaProducer

from endpoints.endpoint_process import EndpointProcess
from endpoints.raw_client import RawClient
from endpoints.requests import list_offsets

if TYPE_CHECKING:
    from broker.broker import Broker

pytestmark = [pytest.mark.broker, pytest.mark.full]

TOPIC = "offsets-by-time"
COUNT = 40
SEGMENT_BYTES = 2_000
LATEST, EARLIEST = -1, -2
HOUR_MS = 3_600_000
RECORD_TIME_MS = 1_700_000_000_000


def offsets(client: RawClient, timestamp: int, most: int) -> list[int]:
    answer = client.ask(list_offsets((TOPIC, 0, timestamp), most=most), 0)
    (partition,) = answer.topics[0].partitions
    assert partition.error_code == 0
    return list(partition.old_style_offsets)


def test_list_offsets_v0_when_a_timestamp_is_asked_for_then_serve_and_kafka_3_answer_alike(
    broker_3: Broker, tmp_path: Path
) -> None:
    """The times of records do not count: a segment is as old as its file, and the end of the log is as old as now."""
    broker_3.create_topic(TOPIC, config={"segment.bytes": str(SEGMENT_BYTES)})
    with KafkaProducer(bootstrap_servers=broker_3.bootstrap) as producer:
        for number in range(COUNT):
            producer.send(TOPIC, bytes(400), partition=0, timestamp_ms=RECORD_TIME_MS + number).get(60)
    source = broker_3.log_dir / f"{TOPIC}-0"
    shutil.copytree(source, tmp_path / f"{TOPIC}-0")  # with the times of files
    modified = sorted(path.stat().st_mtime_ns // 1_000_000 for path in source.glob("*.log"))
    assert len(modified) > 2
    host, _, port = broker_3.bootstrap.rpartition(":")
    with (
        RawClient((host, int(port))) as of_kafka,
        EndpointProcess(tmp_path) as endpoint,
        RawClient((endpoint.host, endpoint.port)) as of_endpoint,
    ):
        tomorrow = int(time.time() * 1000) + 24 * HOUR_MS
        for timestamp in (RECORD_TIME_MS + COUNT // 2, modified[0] - HOUR_MS, tomorrow, LATEST, EARLIEST):
            for most in (1, COUNT):
                expected = offsets(of_kafka, timestamp, most)
                assert (timestamp, offsets(of_endpoint, timestamp, most)) == (timestamp, expected)
                is_past = 0 < timestamp < modified[0]
                assert (expected == []) == is_past
