"""Down-conversion of a gateway (KIP-283): sizes that it promises, compressed answers, and Kafka's metrics (KIP-188)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import kafkafmt as kf
from broker.produce import produce
from endpoints.endpoint_process import GATEWAY, HOST, EndpointProcess, gateway_process
from endpoints.logged_endpoint import LoggedEndpoint
from endpoints.raw_client import RawClient
from endpoints.requests import Wanted, fetch
from endpoints.scraping import metric
from gateway.test_old_fetch import batch, fetched, offsets_of
from kafkafmt import Codec

if TYPE_CHECKING:
    from broker.broker import Broker

pytestmark = pytest.mark.broker

LIMIT = 10_000
REQUEST = "kafka_network_requestmetrics_{}_{}"
CONVERTED = "kafka_server_brokertopicmetrics_fetchmessageconversions_total"


def whole_batches(partition: Any) -> list[kf.RecordBatch]:
    """Those of an answer, which has nothing else: no padding, and no message that is cut."""
    found = list(kf.MemoryRecords(partition.records).batches())
    assert sum(one.size_in_bytes for one in found) == len(partition.records)
    return found


@pytest.mark.parametrize("version", [0, 3])
@pytest.mark.parametrize(("batches", "count"), [(100, 1), (10, 100)], ids=["shrinks", "grows"])
def test_kip_283_determining_total_response_size_when_uncompressed_then_responses_are_neither_padded_nor_cut(
    broker: Broker, gateway: EndpointProcess, version: int, batches: int, count: int
) -> None:
    topic = f"exact-{batches}-{version}"
    broker.create_topic(topic)
    for first in range(0, batches * count, count):
        assert produce(broker, topic, batch(first, count)) == 0
    offsets: list[int] = []
    with RawClient((gateway.host, gateway.port)) as client:
        while len(offsets) < batches * count:
            request = fetch(Wanted(topic, 0, len(offsets), LIMIT), max_bytes=LIMIT)
            found = fetched(client, request, version)[0]
            whole_batches(found)
            assert len(found.records) <= LIMIT
            offsets += offsets_of(found)
    assert offsets == list(range(batches * count))


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4"])
def test_kip_283_compression_when_a_codec_is_set_then_wrappers_have_it_and_nothing_is_padded(
    broker: Broker, codec: str
) -> None:
    topic = f"compressed-{codec}"
    broker.create_topic(topic, 2)
    for first in range(0, 200, 20):
        assert (
            produce(broker, topic, batch(first, 20, Codec.ZSTD if first % 40 else Codec.NONE, size=500)) == 0
        )
        assert produce(broker, topic, batch(first, 20, size=500), 1) == 0
    options = ("--downconversion-codec", codec, "--chunk-size", "32K")
    with (
        gateway_process(broker.bootstrap, *options) as gateway,
        RawClient((gateway.host, gateway.port)) as client,
    ):
        for version in (1, 2):
            offsets: dict[int, list[int]] = {0: [], 1: []}
            while min(map(len, offsets.values())) < 200:
                wanted = (Wanted(topic, number, len(seen)) for number, seen in offsets.items())
                for number, found in fetched(client, fetch(*wanted), version).items():
                    if found.records:
                        codecs = {(one.magic, one.codec) for one in whole_batches(found)}
                        assert codecs == {(version - 1, Codec[codec.upper()])}
                        offsets[number] += offsets_of(found)
            assert offsets == {number: list(range(200)) for number in (0, 1)}


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_kip_188_metrics_when_the_only_batch_is_converted_while_planning_then_have_its_time_and_memory(
    broker: Broker, workers: int
) -> None:
    """FetchMessageConversionsPerSec, TemporaryMemoryBytes and MessageConversionsTimeMs of a fetch, by Kafka's names.

    KIP-283 converts the first batch before the response is sent, to know its size.
    """
    topic = f"planned-{workers}"
    broker.create_topic(topic)
    data = batch(0, 50)
    assert produce(broker, topic, data) == 0
    stats = kf.MemoryRecords(data).down_convert(1).stats
    options = ("--metrics", f"{HOST}:0", "--workers", workers)
    with LoggedEndpoint(f"kafka://{broker.bootstrap}", *options, command=GATEWAY) as gateway:
        address = gateway.event("metrics are served")["address"]
        for _ in range(4):
            with RawClient((gateway.host, gateway.port)) as client:
                assert offsets_of(fetched(client, fetch(Wanted(topic)), 3)[0]) == list(range(50))
        while metric(address, CONVERTED, topic=topic) < 4 * 50:
            pass
        for name in ("temporarymemorybytes", "messageconversionstimems"):
            assert metric(address, REQUEST.format(name, "count"), request="Fetch") == 4
        memory = metric(address, REQUEST.format("temporarymemorybytes", "sum"), request="Fetch")
        assert memory == 4 * stats.temporary_memory_bytes
        # The time is not 0 although nothing is converted while the response is sent.
        assert metric(address, REQUEST.format("messageconversionstimems", "sum"), request="Fetch") > 0
