"""Several batches in one request, to the receiver that takes them: `kafkafmt serve --allow-produce` (KIP-712)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import kafkafmt as kf
from client.sending import ANSWER_SECONDS, GUARANTEES, START_MS, assert_sequences_continue
from client.test_raw_producer import as_written, batches_in, built, records_in, run_of, source
from endpoints.served import Served
from kafkafmt.client.accumulator import RecordsFuture
from kafkafmt.log import PartitionLog
from kafkafmt.net import RawProducer

pytestmark = pytest.mark.clients


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Of a topic without records."""
    (tmp_path / "topic-0").mkdir()
    (tmp_path / "topic-0" / f"{0:020}.log").touch()
    return tmp_path


@pytest.fixture
def address(folder: Path) -> Iterator[str]:
    with Served(folder, allow_produce=True) as served:
        yield "{}:{}".format(*served.address)


def stored(folder: Path) -> list[kf.RecordBatch]:
    return list(PartitionLog(folder / "topic-0").batches())


def requests_of(future: RecordsFuture) -> int:
    return len({id(span.batch) for span in future._spans})


@GUARANTEES
def test_what_is_sent_together_arrives_in_one_request_and_each_record_where_its_future_says(
    folder: Path, address: str, guarantee: dict[str, Any]
) -> None:
    sent = source(producer_id=99, producer_epoch=7, base_sequence=5)
    with RawProducer(bootstrap_servers=address, max_batches_per_request="auto", **guarantee) as producer:
        together = producer.send_run("topic", run_of(*sent), partition=0)
        assert together.get(ANSWER_SECONDS).tolist() == list(range(len(records_in(sent))))
        assert requests_of(together) == 1
    assert [as_written(batch) for batch in stored(folder)] == [
        as_written(batch) for batch in batches_in(sent)
    ]
    assert [record for batch in stored(folder) for record in batch] == [
        record for batch in batches_in(sent) for record in batch
    ]
    if guarantee["enable_idempotence"]:
        assert_sequences_continue(stored(folder))


def test_requests_are_bounded_in_bytes(folder: Path, address: str) -> None:
    small = [built(kf.Codec.NONE, number, 1) for number in range(2000)]
    limit = sum(map(len, small)) // 4
    with RawProducer(
        bootstrap_servers=address, max_batches_per_request="auto", max_request_size=limit
    ) as producer:
        future = producer.send_run("topic", run_of(*small), partition=0)
        assert future.get(ANSWER_SECONDS).tolist() == list(range(2000))
        assert 4 <= requests_of(future) <= 6
    assert len(stored(folder)) == 2000


def test_one_batch_that_is_larger_than_the_topic_takes_does_not_hinder_those_beside_it(
    folder: Path, address: str
) -> None:
    large = kf.RecordBatchBuilder(base_offset=10)
    for _ in range(30):
        large.append(START_MS, None, bytes(100_000))
    sent = [built(kf.Codec.GZIP), large.build(), built(kf.Codec.GZIP, 40)]
    with RawProducer(bootstrap_servers=address, max_batches_per_request="auto") as producer:
        producer.send("topic", sent[0], partition=0).get(ANSWER_SECONDS)
        future = producer.send_run("topic", run_of(*sent[1:]), partition=0)
        assert future.get(ANSWER_SECONDS).tolist() == list(range(10, 50))
    assert [record for batch in stored(folder) for record in batch] == [
        record for batch in batches_in(sent) for record in batch
    ]
