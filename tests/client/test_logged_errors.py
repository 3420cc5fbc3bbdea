"""What kafka-python logs before it gives up becomes the reason of one error."""

from __future__ import annotations

import logging

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


@pytest.mark.parametrize("kind", ["TCP", "SSL"])
def test_error_when_a_transport_ends_then_the_reason_has_the_address_of_the_broker(kind: str) -> None:
    logged = LoggedError()
    with logged.kept():
        LOGGER.error("%s: socket disconnected", f"<Kafka{kind}Transport [127.0.0.1:9092<-46690]>")
    assert logged.explain(TIMEOUT, {}).endswith("(127.0.0.1:9092: socket disconnected)")
