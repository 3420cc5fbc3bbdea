"""Configuration out of text: Kafka's names and kafka-python's, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from kafka import KafkaAdminClient, KafkaConsumer

from kafkafmt.client.client_config import parse_client_config
from kafkafmt.net import Producer

SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule required"


JAAS = f'{SCRAM} username="a\\"b" password=c;'
PEM = {
    "ssl.truststore.location": "ca.pem",
    "ssl.truststore.type": "PEM",
    "ssl.keystore.location": "me.pem",
    "ssl.keystore.type": "pem",
    "ssl.key.password": "x",
}


@pytest.mark.parametrize(
    ("client", "given", "config"),
    [
        (
            KafkaConsumer,
            {"fetch.max.bytes": "100", "check.crcs": "False"},
            {"fetch_max_bytes": 100, "check_crcs": False},
        ),
        (KafkaConsumer, {"Client.Id": "me", "client_rack": "r1"}, {"client_id": "me", "client_rack": "r1"}),
        (KafkaAdminClient, {"api_version": "3.9"}, {"api_version": (3, 9)}),
        (KafkaAdminClient, {"send_buffer_bytes": "7"}, {"send_buffer_bytes": 7}),
        (Producer, {"acks": "all", "compression.level": "3"}, {"acks": -1, "compression_level": 3}),
        (Producer, {"estimator": "kip126"}, {"estimator": "kip126"}),
        (Producer, {"acks": "1", "retries": "5"}, {"acks": 1, "retries": 5.0}),
        (
            KafkaConsumer,
            {"sasl.jaas.config": JAAS},
            {"sasl_plain_username": 'a"b', "sasl_plain_password": "c"},
        ),
        (KafkaConsumer, PEM, {"ssl_cafile": "ca.pem", "ssl_certfile": "me.pem", "ssl_password": "x"}),
        (KafkaConsumer, {"ssl.endpoint.identification.algorithm": ""}, {"ssl_check_hostname": False}),
    ],
)
def test_text_when_parsed_then_is_what_the_client_takes(
    client: type, given: dict[str, str], config: dict[str, Any]
) -> None:
    assert parse_client_config(given, client) == config
    assert client.DEFAULT_CONFIG.keys() >= config.keys()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"fetch.max.byte": "1"}, "unknown client option 'fetch_max_byte': did you mean 'fetch_max_bytes'?"),
        ({"fetch.max.bytes": "1k"}, "client option 'fetch_max_bytes': expected a number, found '1k'"),
        ({"check.crcs": "yes"}, "client option 'check_crcs': expected true or false, found 'yes'"),
        ({"api_version": "new"}, "client option 'api_version': expected a version, as 3.9, found 'new'"),
        ({"ssl_context": "x"}, "client option 'ssl_context': expected it left out, as it takes no text"),
        ({"value.deserializer": "x"}, "client option 'value_deserializer': expected it left out"),
        ({"sasl.jaas.config": 'x username="u" secret'}, "sasl.jaas.config: expected a PlainLoginModule or"),
        ({"ssl.truststore.location": "a", "ssl.truststore.type": "JKS"}, "ssl.truststore.type: expected PEM"),
        ({"ssl.keystore.location": "a"}, "ssl.keystore.location: expected ssl.keystore.type=PEM beside it"),
    ],
)
def test_bad_text_when_parsed_then_is_told_in_one_line(given: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=r"^.+$") as caught:
        parse_client_config(given, KafkaConsumer)
    assert str(caught.value).startswith(message)
    assert "secret" not in str(caught.value)
