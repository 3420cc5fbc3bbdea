"""The options of `format("kafkafmt.kafka")`, which no broker is asked about."""

from __future__ import annotations

import pytest

from kafkafmt.scanning.selection import LATEST, Bound, TopicSelection
from kafkafmt.spark.kafka.options import KafkaReadOptions
from kafkafmt.spark.kafka.writing import SendJob
from kafkafmt.spark.kafka_data_source import KafkaDataSource
from kafkafmt.spark.source.options import Amount
from kafkafmt.spark.writers import Writer
from kafkafmt.types import TopicPartition
from spark.writes import schema_of

SERVERS = {"kafka.bootstrap.servers": "127.0.0.1:9092"}
BATCHES = {**SERVERS, "unit": "batches"}


def parse(**options: str) -> KafkaReadOptions:
    return KafkaReadOptions.parse({**SERVERS, **named(options)})


def named(options: dict[str, str]) -> dict[str, str]:
    return {name.replace("__", "."): value for name, value in options.items()}


def test_options_when_not_given_then_all_committed_records_are_read() -> None:
    options = parse(subscribe="a, b")
    assert options.clients.config == {
        "bootstrap_servers": "127.0.0.1:9092",
        "isolation_level": "read_committed",
    }
    assert options.subscription.topics == TopicSelection(names=("a", "b"))
    assert (options.starting, options.ending) == (Bound(), Bound())
    assert options.fails_on_data_loss


def test_client_options_when_given_in_kafka_s_words_then_are_kafka_python_s() -> None:
    jaas = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="me" password="secret";'
    options = parse(
        subscribe="a",
        KAFKA__Security__Protocol="SASL_SSL",
        kafka__sasl__mechanism="PLAIN",
        kafka__sasl__jaas__config=jaas,
        kafka__fetch__max__bytes="1000",
        kafka__isolation__level="read_uncommitted",
    )
    assert options.clients.config == {
        "bootstrap_servers": "127.0.0.1:9092",
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "PLAIN",
        "sasl_plain_username": "me",
        "sasl_plain_password": "secret",
        "fetch_max_bytes": 1000,
        "isolation_level": "read_uncommitted",
    }
    assert "secret" not in repr(options)


def test_control_batches_when_included_then_so_is_what_is_not_committed() -> None:
    options = parse(subscribe="a", includeControlBatches="true")
    assert options.clients.config["isolation_level"] == "read_uncommitted"


def test_selection_and_bounds_when_given_then_are_spark_s() -> None:
    options = parse(assign='{"a": [0, 2]}', endingOffsets='{"a": {"0": 5, "2": -1}}', minPartitions="4")
    assert options.subscription.assigned == {TopicPartition("a", 0), TopicPartition("a", 2)}
    assert options.ending.offsets == {TopicPartition("a", 0): 5, TopicPartition("a", 2): None}
    assert options.min_partitions == 4
    stream = KafkaReadOptions.parse_stream(
        {
            **SERVERS,
            "subscribePattern": "a.*",
            "startingOffsets": '{"a": {"0": -1}}',
            "maxOffsetsPerTrigger": "9",
        }
    )
    assert stream.starting.offsets == {TopicPartition("a", 0): LATEST}
    assert stream.limit == Amount(rows=9)
    assert "ab" in stream.subscription.topics


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "no topics: expected one of the options subscribe, subscribePattern, assign"),
        ({"subscribe": "a", "assign": '{"a": [0]}'}, "options subscribe and assign: expected one of them"),
        ({"assign": '{"a": 0}'}, 'option assign: expected JSON as {"topic": [0, 1]}, found'),
        ({"assign": "[" * 100_000}, 'option assign: expected JSON as {"topic": [0, 1]}, found'),
        ({"assign": "{}"}, 'option assign: expected JSON as {"topic": [0, 1]}, found'),
        ({"subscribe": "a", "kafka.bootstrap.servers": ""}, "no option kafka.bootstrap.servers: expected host:port"),
        ({"subscribe": "a", "kafka.fetch.max.byte": "1"}, "unknown client option 'fetch.max.byte': did you mean"),
        ({"subscribe": "a", "kafka.group.id": "g"}, "option kafka.group.id: expected it left out: partitions are"),
        ({"subscribe": "a", "kafka.isolation.level": "x"}, "option kafka.isolation.level: expected read_committed"),
        (
            {"subscribe": "a", "includeControlBatches": "true", "kafka.isolation.level": "read_committed"},
            "option includeControlBatches: needs kafka.isolation.level=read_uncommitted",
        ),
        ({"subscribe": "a", "maxOffsetsPerTrigger": "1"}, "option maxOffsetsPerTrigger: streams have it"),
        ({"subscribe": "a", "startingOffset": "1"}, "unknown option 'startingOffset': did you mean 'startingOffsets'?"),
        (
            {"subscribe": "a", "startingOffsets": "latest"},
            "option startingOffsets: expected earliest or offsets, and not latest",
        ),
        ({"subscribe": "a", "onCorrupt": "keep"}, "option onCorrupt: expected fail or skip, found 'keep'"),
        ({"subscribe": "a", "columns": "value"}, "unknown column 'value': expected one of"),
        ({"subscribe": "a", "columns": "file"}, "unknown column 'file': expected one of"),
    ],
)  # fmt: skip
def test_bad_option_when_given_then_is_told_in_one_line(options: dict[str, str], message: str) -> None:
    source = KafkaDataSource({**BATCHES, **options})
    with pytest.raises(ValueError, match=r"^.+$") as caught:
        source.reader(schema_of(*source.schema().split()[:1]))
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        (["topic", "partition"], {}, "no column value: found topic, partition"),
        (["batch", "partition"], {}, "no topic: expected a column topic, or the option topic for all rows"),
        (["batch", "other"], {"topic": "t", "partition": "0"}, "unknown column 'other': expected one of"),
        (["value"], {}, "no topic: expected a column topic, or the option topic for all rows"),
        (["value"], {"topic": "t", "kafka.value.serializer": "S"}, "client option 'value.serializer': expected"),
        (["value"], {"topic": "t", "codec": "lz4"}, "unknown option 'codec': expected one of"),
        (["batch"], {"topic": "a/b", "partition": "0"}, "option topic: expected a topic's name"),
        (["batch"], {"kafka.compression.type": "lz4"}, "option kafka.compression.type: expected it left out: batches"),
        (["batch"], {"kafka.estimator": "kip126"}, "option kafka.estimator: expected it left out: batches go out as"),
        (["batch"], {"kafka.transactional.id": "t"}, "option kafka.transactional.id: expected it left out"),
        (["batch"], {"codec": "lz4"}, "unknown option 'codec': expected one of"),
        (["batch"], {"checkpointLocation": "/c"}, "unknown option 'checkpointLocation': expected one of"),
    ],
)  # fmt: skip
def test_bad_option_when_given_to_the_sink_then_is_told_in_one_line(
    columns: list[str], options: dict[str, str], message: str
) -> None:
    source = KafkaDataSource({**SERVERS, **options})
    with pytest.raises(ValueError, match=r"^.+$") as caught:
        source.writer(schema_of(*columns), overwrite=False)
    assert str(caught.value).startswith(message)


def test_topic_when_to_be_replaced_then_refused() -> None:
    given = {**SERVERS, "topic": "t", "partition": "0"}
    with pytest.raises(ValueError, match=r"^mode overwrite: a topic cannot be replaced; expected append"):
        KafkaDataSource(given).writer(schema_of("batch"), overwrite=True)
    with pytest.raises(ValueError, match=r"^outputMode complete: a topic cannot be replaced"):
        KafkaDataSource(given).streamWriter(schema_of("batch"), overwrite=True)
    job = SendJob.parse({**given, "kafka.max.batches.per.request": "auto"}, schema_of("batch"))
    assert job.clients.config["max_batches_per_request"] == "auto"
    assert isinstance(KafkaDataSource(given).writer(schema_of("batch"), overwrite=False), Writer)
