"""What kafka-python's own code calls on the accumulator, its batches and the transaction manager is there.

Those are no public interfaces: a new kafka-python that calls something else fails here, and not in a sender's thread.
"""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
import textwrap
import threading
from types import ModuleType

import kafka.consumer.fetcher
import kafka.producer.kafka
import kafka.producer.sender
import kafka.producer.transaction_manager
import kafka.record
import pytest
from kafka.consumer.fetcher import Fetcher
from kafka.consumer.subscription_state import SubscriptionState
from kafka.metrics import Metrics
from kafka.net.compat import KafkaNetClient
from kafka.producer.sender import Sender
from kafka.producer.transaction_manager import TransactionManager

import kafkafmt.client.sender
import kafkafmt.mirror.clusters
import kafkafmt.mirror.sources.cluster
from client.test_partition_batches import PLAIN, batches_of
from kafkafmt import RecordBatchBuilder, TopicPartition
from kafkafmt.client.accumulator import ProducerBatch
from kafkafmt.client.limits import TopicLimits
from kafkafmt.client.raw_fetcher import PartitionBatches, RawFetcher
from kafkafmt.client.sender import ProducerSender
from kafkafmt.client.sender_accumulator import ProducerAccumulator, SenderAccumulator, SenderBatch
from kafkafmt.client.transactions import ProducerTransactions
from kafkafmt.net import Producer

OVERRIDDEN = {"__init__", "send", "flush", "close"}


def attributes_of(module: ModuleType, *names: str, without: frozenset[str] = frozenset()) -> set[str]:
    """What a module reads or calls on variables and attributes of those names, but for some functions of it."""
    found = set()
    pending: list[ast.AST] = [ast.parse(inspect.getsource(module))]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.FunctionDef) and node.name in without:
            continue
        if isinstance(node, ast.Attribute):
            owner = node.value
            name = owner.attr if isinstance(owner, ast.Attribute) else getattr(owner, "id", None)
            if name in names:
                found.add(node.attr)
        pending += ast.iter_child_nodes(node)
    return found


@pytest.fixture
def sender_accumulator() -> SenderAccumulator:
    limits = TopicLimits(KafkaNetClient, is_asked_for=False, max_age_ms=0, retry_backoff_ms=0)
    return SenderAccumulator(
        ProducerAccumulator(),
        client=KafkaNetClient,
        transactions=None,
        limits=limits,
        metrics=None,
        tells_offsets=True,
    )


def test_the_accumulator_has_all_that_the_sender_asks_of_one(sender_accumulator: SenderAccumulator) -> None:
    asked = attributes_of(kafka.producer.sender, "_accumulator")
    assert {"drain", "muted", "split_and_reenqueue"} <= asked
    assert not {name for name in asked if not hasattr(sender_accumulator, name)}


def test_the_accumulator_has_all_that_the_producer_asks_of_one_outside_of_what_is_overridden(
    sender_accumulator: SenderAccumulator,
) -> None:
    asked = attributes_of(kafka.producer.kafka, "_accumulator", without=frozenset(OVERRIDDEN))
    assert not {name for name in asked if not hasattr(sender_accumulator, name)}
    assert vars(Producer).keys() >= OVERRIDDEN


def test_a_batch_has_all_that_sender_and_transaction_manager_ask_of_one(
    sender_accumulator: SenderAccumulator,
) -> None:
    builder = RecordBatchBuilder()
    builder.append(0, None, b"value")
    batch = SenderBatch(ProducerBatch(TopicPartition("topic", 0), builder, created_ms=0), sender_accumulator)
    batch.batch.close()
    names = ("batch", "expired_batch", "records")
    asked = attributes_of(kafka.producer.sender, *names)
    asked |= attributes_of(kafka.producer.transaction_manager, "batch")
    assert {"buffer", "complete_exceptionally", "producer_epoch"} <= asked
    assert not {name for name in asked if not hasattr(batch, name)}


def test_the_transaction_manager_is_made_of_all_that_kafka_pythons_is_made_of() -> None:
    made = TransactionManager("id", 1, 2, (3, 9), "metadata")
    copy = ProducerTransactions.replacing(made)
    parameters = set(inspect.signature(TransactionManager.__init__).parameters) - {"self"}
    assert parameters == {
        "transactional_id",
        "transaction_timeout_ms",
        "retry_backoff_ms",
        "api_version",
        "metadata",
    }
    known = ("transactional_id", "transaction_timeout_ms", "retry_backoff_ms", "_api_version", "_metadata")
    assert [getattr(copy, name) for name in known] == ["id", 1, 2, (3, 9), "metadata"]


def test_the_sender_is_made_of_all_that_kafka_pythons_is_made_of(
    sender_accumulator: SenderAccumulator,
) -> None:
    """What its constructor is given by name it keeps as its configuration, under the names that it knows."""
    given = {"client_id": "me", "retry_backoff_ms": 7, "transaction_manager": ProducerTransactions()}
    client = KafkaNetClient(bootstrap_servers="127.0.0.1:1")
    made = Sender(client, client.cluster, sender_accumulator, metrics=Metrics(), **given)
    copy = ProducerSender.replacing(made)
    assert list(inspect.signature(Sender.__init__).parameters) == [
        "self",
        "client",
        "metadata",
        "accumulator",
        "configs",
    ]
    kept = (
        vars(made).keys()
        - vars(threading.Thread()).keys()
        - {"config", "_in_flight_batches", "_topics_to_add"}
    )
    assert {name: getattr(copy, name) for name in kept} == {name: getattr(made, name) for name in kept}
    assert copy.config == {**made.config, "metrics": None}
    assert copy.name == made.name


def test_the_sender_asks_for_all_that_kafka_pythons_asks_for_before_it_sends_a_request() -> None:
    """But for what waits there."""
    asked = attributes_of(
        kafkafmt.client.sender, "self", "transactions", "_client", "_accumulator", "handler", "_metadata"
    )
    method = textwrap.dedent(inspect.getsource(Sender._maybe_send_pending_request))
    names = {node.attr for node in ast.walk(ast.parse(method)) if isinstance(node, ast.Attribute)}
    assert {"least_loaded_node", "coordinator", "next_in_flight_request_correlation_id"} <= asked
    waits = {
        "await_ready",
        "poll",
        "sleep",
        "_metadata",
        "request_update",
        "_running",
        "_force_close",
        "retry",
    }
    assert names - asked == {*waits, "TransactionAbortedError", "add_both", "debug", "warning"}


def test_fetched_batches_have_all_that_the_fetcher_asks_of_fetched_records() -> None:
    names = ("part", "partition_records", "parked", "parsed_records", "_next_partition_records")
    asked = attributes_of(kafka.consumer.fetcher, *names, without=frozenset({"PartitionRecords"}))
    assert {"take", "drain", "next_fetch_offset", "leader_epoch"} <= asked
    assert not {
        name for name in asked if name not in vars(batches_of(b"")).keys() | vars(PartitionBatches).keys()
    }


def test_fetched_batches_are_made_of_all_that_fetched_records_are_made_of() -> None:
    given = inspect.signature(Fetcher.PartitionRecords.__init__).parameters.keys() - {"self"}
    taken = inspect.signature(RawFetcher.PartitionRecords).parameters.keys() - {"self", "_configured"}
    assert given - taken == {"key_deserializer", "value_deserializer", "check_crcs", "tp"}
    assert taken - given == {"topic_partition"}
    assert hasattr(kafka.record.MemoryRecords(b""), "_buffer")


def test_the_raw_fetcher_is_made_of_all_that_kafka_pythons_is_made_of() -> None:
    client = KafkaNetClient(bootstrap_servers="127.0.0.1:1")
    made = Fetcher(client, SubscriptionState(), metrics=Metrics(), max_poll_records=7)
    copy = RawFetcher.replacing(made, PLAIN)
    assert copy.config == {**made.config, "metrics": None}
    assert (copy._client, copy._subscriptions, copy._sensors) == (
        made._client,
        made._subscriptions,
        made._sensors,
    )


def test_the_mirror_asks_clients_for_nothing_private() -> None:
    asked = attributes_of(kafkafmt.mirror.clusters, "_admin", "_client")
    asked |= attributes_of(kafkafmt.mirror.sources.cluster, "_consumer")
    assert {"describe_topics", "poll_runs"} <= asked
    assert not {name for name in asked if name.startswith("_")}


@pytest.mark.parametrize("absence", ["None", "types.ModuleType('kafka')"], ids=["absent", "a mere folder"])
def test_without_kafka_python_the_import_says_in_one_line_what_to_install(absence: str) -> None:
    program = f"import sys, types; sys.modules['kafka'] = {absence}; import kafkafmt.net"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stderr.splitlines()[-1] == (
        "ModuleNotFoundError: kafkafmt.net needs kafka-python: pip install 'kafkafmt[net]'"
    )
