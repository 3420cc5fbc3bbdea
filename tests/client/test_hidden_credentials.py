"""Passwords are in no log, also if a program logs all that kafka-python says."""

from __future__ import annotations

import logging

import pytest
from kafka.net.sasl.scram import SaslMechanismScram
from kafka.protocol.metadata import ApiVersionsRequest
from kafka.protocol.parser import KafkaProtocol
from kafka.protocol.sasl import SaslAuthenticateRequest, SaslAuthenticateResponse, SaslBytesRequest

import kafkafmt.net  # noqa: F401  as programs do

TOKEN = b"\0alice\0wonderland"


@pytest.mark.parametrize(
    "token", [SaslAuthenticateRequest(version=1, auth_bytes=TOKEN), SaslBytesRequest(TOKEN)]
)
def test_log_of_all_when_a_token_is_sent_then_has_the_other_requests_only(
    token: object, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "kafka")
    parser = KafkaProtocol(client_id="c")
    parser.send_request(ApiVersionsRequest(version=0))
    parser.send_request(token)
    assert TOKEN in parser.send_bytes()
    parser.receive_bytes(TOKEN[:3])
    assert "ApiVersionsRequest" in caplog.text
    assert "wonderland" not in caplog.text
    assert "alice" not in caplog.text


@pytest.mark.parametrize(
    "message",
    [
        SaslAuthenticateRequest(version=1, auth_bytes=TOKEN),
        SaslAuthenticateResponse(version=1, auth_bytes=TOKEN),
    ],
)
def test_log_of_a_connection_when_it_authenticates_then_has_no_token(
    message: object, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "kafka")
    log = logging.getLogger("kafka.net.connection")
    log.debug("%s Request %d: %s", "connection", 1, message)
    log.debug("%s Request %d: %s", "connection", 2, ApiVersionsRequest(version=0))
    assert "ApiVersionsRequest" in caplog.text
    assert "wonderland" not in caplog.text


def test_log_when_scram_is_used_without_tls_then_does_not_say_that_the_password_is_sent(
    caplog: pytest.LogCaptureFixture,
) -> None:
    SaslMechanismScram(
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="SCRAM-SHA-256",
        sasl_plain_username="alice",
        sasl_plain_password="wonderland",
    )
    assert not caplog.records
