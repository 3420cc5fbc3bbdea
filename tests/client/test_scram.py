"""What a client of SCRAM accepts of a broker."""

from __future__ import annotations

import pytest
from kafka.errors import SaslAuthenticationFailedError
from kafka.net.sasl import get_sasl_mechanism

from kafkafmt.client.kafka_python import ScramMechanism

MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512")
SALT = "c2FsdA=="


def begun(name: str = MECHANISMS[0]) -> tuple[ScramMechanism, str]:
    """A client that has sent its first message, and its nonce."""
    mechanism = get_sasl_mechanism(name)(
        sasl_mechanism=name, sasl_plain_username="user", sasl_plain_password="secret"
    )
    assert isinstance(mechanism, ScramMechanism)
    return mechanism, mechanism.auth_bytes().decode().rpartition("r=")[2]


@pytest.mark.parametrize("name", MECHANISMS)
def test_scram_when_the_broker_has_few_iterations_then_it_is_refused(name: str) -> None:
    mechanism, nonce = begun(name)
    with pytest.raises(SaslAuthenticationFailedError, match="at least 4096 iterations, found 4095"):
        mechanism.receive(f"r={nonce}x,s={SALT},i=4095".encode())


@pytest.mark.parametrize("name", MECHANISMS)
def test_scram_when_the_broker_does_not_know_the_password_then_it_is_refused(name: str) -> None:
    mechanism, nonce = begun(name)
    assert not mechanism.receive(f"r={nonce}x,s={SALT},i=4096".encode())
    with pytest.raises(SaslAuthenticationFailedError, match="wrong signature"):
        mechanism.receive(b"v=c2FsdA==")


@pytest.mark.parametrize(
    ("message", "error"),
    [
        ("s={s},i=4096", "lacks r"),
        ("r={r}x", "lacks s, i"),
        ("r={r}x,s={s},i=many", "invalid literal"),
        ("r=other,s={s},i=4096", "nonce"),
        ("e=unknown-user", "the broker refused: unknown-user"),
        ("", "lacks r, s, i"),
    ],
)
def test_scram_when_a_message_is_not_one_of_scram_then_the_error_says_so(message: str, error: str) -> None:
    mechanism, nonce = begun()
    with pytest.raises(SaslAuthenticationFailedError, match=error):
        mechanism.receive(message.format(r=nonce, s=SALT).encode())


def test_scram_when_the_last_message_has_no_signature_then_the_error_says_so() -> None:
    mechanism, nonce = begun()
    mechanism.receive(f"r={nonce}x,s={SALT},i=4096".encode())
    with pytest.raises(SaslAuthenticationFailedError, match="lacks v"):
        mechanism.receive(b"x=1")
