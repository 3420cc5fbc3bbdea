"""What kafka-python logs before it gives up becomes the reason of one error."""

from __future__ import annotations

import logging
import ssl

import kafka.errors as kafka_errors
import pytest

from kafkafmt.client.logged_errors import LoggedError

LOGGER = logging.getLogger("kafka.net.selector")
TIMEOUT = kafka_errors.KafkaTimeoutError("Unable to bootstrap")


def test_error_when_a_response_cannot_be_decoded_then_the_reason_is_the_error_of_the_decoder() -> None:
    logged = LoggedError()
    with logged.kept():
        try:
            raise ValueError("Buffer underrun decoding string")
        except ValueError:
            LOGGER.exception("Unhandled exception in task %s:", object())
    assert logged.explain(TIMEOUT, {}).endswith("(malformed response: Buffer underrun decoding string)")


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (
            "<KafkaConnection node_id=bootstrap-0 host=[127.0.0.1:9092<-46690] broker_version=(4, 3) (initializing)>: "
            "SaslHandshake failed: UnsupportedSaslMechanismError",
            "the broker does not accept the mechanism of SASL (127.0.0.1:9092: SaslHandshake failed: "
            "UnsupportedSaslMechanismError)",
        ),
        (
            "<KafkaTCPTransport [127.0.0.1:9092<-46690]>: socket disconnected",
            "the broker closes the connection (127.0.0.1:9092: socket disconnected)",
        ),
    ],
)
def test_error_when_a_broker_ends_the_connection_then_it_is_not_said_that_none_answers(
    message: str, reason: str
) -> None:
    logged = LoggedError()
    with logged.kept():
        LOGGER.error(message)
    assert logged.explain(TIMEOUT, {}) == reason


@pytest.mark.parametrize(
    "alert",
    ["SSLV3_ALERT_CERTIFICATE_UNKNOWN", "TLSV13_ALERT_CERTIFICATE_REQUIRED", "TLSV1_ALERT_UNKNOWN_CA"],
)
def test_error_when_a_broker_refuses_the_certificate_of_the_client_then_says_so(alert: str) -> None:
    logged = LoggedError()
    with logged.kept():
        try:
            raise ssl.SSLError(1, f"[SSL: {alert}] an alert")
        except ssl.SSLError:
            LOGGER.exception("%s: Error receiving network data closing socket", object())
    expected = f"the broker refuses the client's certificate ([SSL: {alert}] an alert)"
    assert logged.explain(TIMEOUT, {}) == expected


@pytest.mark.parametrize("kind", ["TCP", "SSL"])
def test_error_when_a_transport_ends_then_the_reason_has_the_address_of_the_broker(kind: str) -> None:
    logged = LoggedError()
    with logged.kept():
        LOGGER.error("%s: socket disconnected", f"<Kafka{kind}Transport [127.0.0.1:9092<-46690]>")
    assert logged.explain(TIMEOUT, {}).endswith("(127.0.0.1:9092: socket disconnected)")
