"""Producers under one MemoryBudget, of which one waits for what the other holds."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from client.sending import ANSWER_SECONDS
from endpoints.endpoint_process import EndpointProcess
from freezing import frozen
from kafkafmt import MemoryBudget
from kafkafmt.client.client_config import parse_client_config
from kafkafmt.memory import MemoryPlan
from kafkafmt.net import BufferExhaustedError, Producer
from log.samples import batches, put_segment

pytestmark = pytest.mark.clients

TOTAL_BYTES = 256 * 1024
VALUE = bytes(TOTAL_BYTES * 3 // 4)


@pytest.fixture
def endpoint(tmp_path: Path) -> Iterator[EndpointProcess]:
    put_segment(tmp_path / "logs" / "t-0", 0, batches(0, 10))
    with EndpointProcess(tmp_path / "logs", "--allow-produce", log=tmp_path / "serve.log") as running:
        yield running


def test_producer_when_another_one_holds_the_budget_then_waits_until_its_records_have_arrived(
    endpoint: EndpointProcess, tmp_path: Path
) -> None:
    budget = MemoryBudget(TOTAL_BYTES, "producers")
    options = {"bootstrap_servers": endpoint.address, "budget": budget, "max_block_ms": 30_000}
    with Producer(**options) as first, Producer(**options) as second:
        for producer in (first, second):  # so that nothing but memory is waited for
            producer.send("t", b"begin", partition=0).get(ANSWER_SECONDS)
        with frozen(endpoint.pid):
            held = first.send("t", VALUE, partition=0)
            sent = []
            sending = threading.Thread(target=lambda: sent.append(second.send("t", VALUE, partition=0)))
            sending.start()
            while not budget.waiting:
                assert sending.is_alive()
            assert budget.held_bytes > len(VALUE)
            assert not held.is_done
            assert not sent
        sending.join()
        assert sent[0].get(ANSWER_SECONDS).offset > held.get(ANSWER_SECONDS).offset
        assert budget.peak_bytes <= TOTAL_BYTES
    assert budget.held_bytes == 0
    assert [usage.name for usage in budget.usage()] == ["producers"]


def test_producer_when_another_one_holds_the_budget_for_too_long_then_raises(
    endpoint: EndpointProcess,
) -> None:
    budget = MemoryBudget(TOTAL_BYTES, "producers")
    options = {"bootstrap_servers": endpoint.address, "budget": budget}
    with Producer(**options) as producer:
        producer.send("t", b"begin", partition=0).get(ANSWER_SECONDS)
        producer._max_block_ms = 1  # now that it knows the topic
        with budget.reserve(TOTAL_BYTES, ANSWER_SECONDS), pytest.raises(BufferExhaustedError):
            producer.send("t", VALUE, partition=0)


def test_producer_when_it_gets_a_plan_then_has_what_that_says_of_a_thread(endpoint: EndpointProcess) -> None:
    plan = MemoryPlan("256m", threads=4)
    with Producer(bootstrap_servers=endpoint.address, buffer_memory=plan.producer_bytes) as producer:
        assert producer._record_accumulator.budget.total_bytes == plan.producer_bytes == 8 * 1024 * 1024


def test_budget_when_it_is_none_then_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="budget: expected a MemoryBudget, found 5"):
        Producer(bootstrap_servers="localhost:1", budget=5)


def test_budget_when_it_is_text_then_is_an_error() -> None:
    with pytest.raises(ValueError, match="'budget': expected it left out, as it takes no text"):
        parse_client_config({"budget": "1m"}, Producer)
