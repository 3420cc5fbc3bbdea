"""Java's own producer writes to the endpoint, and Java's consumer reads it there."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest
from py4j.protocol import Py4JJavaError

from broker.client import JavaClient, Message
from endpoints.endpoint_process import EndpointProcess
from kafkafmt.log import PartitionLog
from kafkafmt.log.topic_configs import TopicConfig, set_topic_config
from oracle.kafka import KafkaOracle

pytestmark = [pytest.mark.oracle, pytest.mark.broker, pytest.mark.xdist_group("oracle")]

NOW = 1_700_000_000_000
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


class Reached(NamedTuple):
    """What clients connect to."""

    bootstrap: str


def messages(codec: str) -> list[Message]:
    text = codec.encode()
    return [
        Message(NOW, b"k", text * 100, [("h", b"1"), ("none", None)]),
        Message(NOW + 5, None, None),
        Message(NOW + 2, b"", text),
    ]


def test_java_producer_when_it_writes_then_java_reads_the_same(oracle: KafkaOracle, tmp_path: Path) -> None:
    set_topic_config(tmp_path, "t", TopicConfig(1))
    sent = [message for codec in CODECS for message in messages(codec)]
    with (
        EndpointProcess(tmp_path, "--allow-produce") as endpoint,
        JavaClient(oracle.jvm, Reached(endpoint.address)) as client,
    ):
        for codec in CODECS:
            with client.producer(codec) as producer:
                client.send(producer, "t", messages(codec))
        found = client.consume("t")
        with pytest.raises(Py4JJavaError, match="TransactionalIdAuthorization"):
            client.open_producer(transactional_id="mine")
    assert [(one.timestamp, one.key, one.value, one.headers) for one in found] == [
        (one.timestamp, one.key, one.value, one.headers) for one in sent
    ]
    batches = list(PartitionLog(tmp_path / "t-0").batches())
    assert [batch.codec.name.lower() for batch in batches] == list(CODECS)
    assert all(
        batch.producer_id >= 0 for batch in batches
    )  # Java's producer is idempotent unless told otherwise
