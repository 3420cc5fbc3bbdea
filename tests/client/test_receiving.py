"""Large responses: what arrives is what was sent, in plain text and through TLS."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest
from kafka import TopicPartition

import kafkafmt as kf
from endpoints.endpoint_process import EndpointProcess
from kafkafmt.log import PartitionLogWriter
from kafkafmt.net import RawConsumer
from server.security.certificates import make_certificates

pytestmark = pytest.mark.slow

PARTITION = TopicPartition("large", 0)
BATCHES = 12


def write_log(folder: Path) -> bytes:
    """Batches of 1 MB, and such of a record between them; returns all of it."""
    random, data = Random(5), b""
    with PartitionLogWriter(folder / "large-0") as writer:
        for number in range(BATCHES):
            builder = kf.RecordBatchBuilder(base_offset=number)
            builder.append(number, None, random.randbytes(1_000_000 if number % 2 else 10))
            data += builder.build()
        writer.append(data)
    return data


@pytest.mark.parametrize("way", ["plain", "tls", "small buffer"])
def test_fetched_bytes_are_those_of_the_log(tmp_path: Path, way: str) -> None:
    expected = write_log(tmp_path / "logs")
    arguments: list[str] = []
    options: dict[str, Any] = {"receive_buffer_bytes": 10_000} if way == "small buffer" else {}
    if way == "tls":
        certificates = make_certificates(tmp_path)
        arguments = ["--tls-cert", str(certificates.server), "--tls-key", str(certificates.server_key)]
        options = {"security_protocol": "SSL", "ssl_cafile": str(certificates.server_ca)}
    with EndpointProcess(tmp_path / "logs", *arguments) as endpoint:
        consumer = RawConsumer(
            bootstrap_servers=endpoint.address, max_partition_fetch_bytes=5_000_000, **options
        )
        try:
            consumer.assign([PARTITION])
            consumer.seek_to_beginning()
            found = b""
            while consumer.position(PARTITION) < BATCHES:
                for runs in consumer.poll_runs(timeout_ms=1000).values():
                    found += b"".join(run.batch(number) for run in runs for number in range(len(run)))
        finally:
            consumer.close(autocommit=False)
    assert found == expected
