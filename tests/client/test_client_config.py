"""Configuration out of text: Kafka's names and kafka-python's, and what is refused."""

from __future__ import annotations

import re
from typing import Any

import pytest
from kafka import KafkaAdminClient, KafkaConsumer
from kafka.errors import KafkaConfigurationError

from kafkafmt.client.client_config import check_security, parse_client_config
from kafkafmt.client.consumer_config import consumer_config
from kafkafmt.client.producer_config import producer_config
from kafkafmt.net import Consumer, Producer, RawConsumer, RawProducer

SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule required"


JAAS = f'{SCRAM} username="a\\"b" password=c;'
TLS, USES_TLS = {"security.protocol": "SSL"}, {"security_protocol": "SSL"}
SCRAM_TLS = {"security.protocol": "SASL_SSL", "sasl.mechanism": "SCRAM-SHA-512"}
USES_SCRAM_TLS = {"security_protocol": "SASL_SSL", "sasl_mechanism": "SCRAM-SHA-512"}
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
            {**SCRAM_TLS, "sasl.jaas.config": JAAS},
            {**USES_SCRAM_TLS, "sasl_plain_username": 'a"b', "sasl_plain_password": "c"},
        ),
        (
            KafkaConsumer,
            {**TLS, **PEM},
            {**USES_TLS, "ssl_cafile": "ca.pem", "ssl_certfile": "me.pem", "ssl_password": "x"},
        ),
        (
            KafkaConsumer,
            {**TLS, "ssl.endpoint.identification.algorithm": ""},
            {**USES_TLS, "ssl_check_hostname": False},
        ),
        (KafkaConsumer, {"security.protocol": "ssl"}, USES_TLS),
        (
            KafkaConsumer,
            {"security.protocol": "sasl_ssl", "sasl.mechanism": "gssapi"},
            {"security_protocol": "SASL_SSL", "sasl_mechanism": "GSSAPI"},
        ),
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
        ({"fetch.max.byte": "1"}, "unknown client option 'fetch.max.byte': did you mean 'fetch.max.bytes'?"),
        ({"fetch.max.bytes": "1k"}, "client option 'fetch.max.bytes': expected a number, found '1k'"),
        ({"check.crcs": "yes"}, "client option 'check.crcs': expected true or false, found 'yes'"),
        ({"api_version": "new"}, "client option 'api_version': expected a version, as 3.9, found 'new'"),
        ({"ssl_context": "x"}, "client option 'ssl_context': expected it left out, as it takes no text"),
        ({"value.deserializer": "x"}, "client option 'value.deserializer': expected it left out"),
        ({"sasl.jaas.config": 'x username="u" secret'}, "sasl.jaas.config: expected a PlainLoginModule or"),
        (
            {**SCRAM_TLS, "sasl.jaas.config": f'{SCRAM} username="u" password="secret" tokenauth="true";'},
            "sasl.jaas.config: expected no tokenauth, as delegation tokens are not supported",
        ),
        (
            {**SCRAM_TLS, "sasl.mechanism": "OAUTHBEARER"},
            "sasl.mechanism=OAUTHBEARER needs sasl_oauth_token_provider, an object,",
        ),
        ({"ssl.truststore.location": "a", "ssl.truststore.type": "JKS"}, "ssl.truststore.type: expected PEM"),
        (
            {"security.protocol": "SASL_SLL"},
            "security.protocol: expected one of PLAINTEXT, SSL, SASL_PLAINTEXT",
        ),
        (
            {"sasl.mechanism": "PLAIN"},
            "sasl.mechanism has no effect: security.protocol=PLAINTEXT has no SASL",
        ),
        (
            {"sasl.jaas.config": JAAS},
            "sasl.jaas.config has no effect: security.protocol=PLAINTEXT has no SASL",
        ),
        (
            {**TLS, "sasl.jaas.config": JAAS},
            "sasl.jaas.config has no effect: security.protocol=SSL has no SASL",
        ),
        ({"ssl.cafile": "a"}, "ssl.cafile has no effect: security.protocol=PLAINTEXT has no TLS"),
        ({**TLS, "ssl.keyfile": "a"}, "ssl.keyfile needs ssl.certfile"),
        ({**SCRAM_TLS, "sasl.mechanism": "FOO"}, "sasl.mechanism: expected one of AWS_MSK_IAM, GSSAPI, "),
        (SCRAM_TLS, "security.protocol=SASL_SSL needs sasl.plain.username, sasl.plain.password"),
        ({"ssl.keystore.location": "a"}, "ssl.keystore.location: expected ssl.keystore.type=PEM beside it"),
    ],
)
def test_bad_text_when_parsed_then_is_told_in_one_line(given: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=r"^.+$") as caught:
        parse_client_config(given, KafkaConsumer)
    assert str(caught.value).startswith(message)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("client", [Consumer, RawConsumer, Producer, RawProducer])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"security_protocol": "ssl"},
            "security_protocol: expected one of PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL, found ssl",
        ),
        (
            {"sasl_plain_username": "me", "sasl_plain_password": "secret"},
            "sasl_plain_username has no effect: security_protocol=PLAINTEXT has no SASL",
        ),
        ({"ssl_cafile": "ca.pem"}, "ssl_cafile has no effect: security_protocol=PLAINTEXT has no TLS"),
        (
            {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "PLAIN", "sasl_plain_username": "me"},
            "security_protocol=SASL_PLAINTEXT needs sasl_plain_password",
        ),
    ],
)
def test_options_of_security_when_a_client_would_connect_without_it_then_are_refused_before(
    client: type, options: dict[str, str], message: str
) -> None:
    """Nothing listens at the address: a client that connects raises another error."""
    with pytest.raises(ValueError, match="^" + re.escape(message) + "$"):
        client(bootstrap_servers="127.0.0.1:1", bootstrap_timeout_ms=1, **options)


def test_options_of_security_when_they_have_the_values_of_none_then_are_taken() -> None:
    none = {"sasl_mechanism": None, "sasl_plain_password": None, "ssl_context": None}
    check_security({"security_protocol": "PLAINTEXT", **none}, KafkaConsumer.DEFAULT_CONFIG)


@pytest.mark.parametrize("client", [Consumer, RawConsumer, Producer, RawProducer])
def test_unknown_option_of_a_client_then_the_error_names_it_without_its_value(client: type) -> None:
    message = "unknown client option 'sasl_plain_passwort': did you mean 'sasl_plain_password'?"
    with pytest.raises((ValueError, KafkaConfigurationError)) as caught:
        client(sasl_plain_passwort="secret")
    assert message in str(caught.value)
    assert "secret" not in str(caught.value)


def test_configuration_of_a_client_when_shown_then_has_no_secrets() -> None:
    given = {"sasl_plain_password": "secret", "ssl_password": "secret", "sasl_plain_username": "me"}
    for config in (
        producer_config(given, Producer.DEFAULT_CONFIG),
        consumer_config(Consumer.DEFAULT_CONFIG, given),
    ):
        assert config["sasl_plain_password"] == "secret"
        assert "'sasl_plain_username': 'me'" in str(config)
        assert "secret" not in f"{config} {config!r}"
