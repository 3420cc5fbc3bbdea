"""What an error of a SASL mechanism means for a connection."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from kafka.errors import KafkaConfigurationError, KafkaConnectionError
from kafka.net.sasl import get_sasl_mechanism, register_sasl_mechanism
from kafka.net.sasl.plain import SaslMechanismPlain

from kafkafmt.client.kafka_python import sasl_config

NAME = "FAILING"
CONFIG = {"sasl_mechanism": NAME, "sasl_plain_username": "user", "sasl_plain_password": "secret"}


class Failing(SaslMechanismPlain):  # type: ignore[misc]
    """Fails wherever `error` is set, as a mechanism that asks a server for its credentials."""

    error: Exception | None = None

    def __init__(self, **config: Any) -> None:
        self.fail()
        super().__init__(**config)

    def auth_bytes(self) -> Any:
        self.fail()
        return super().auth_bytes()

    def receive(self, auth_bytes: bytes) -> Any:
        self.fail()
        return super().receive(auth_bytes)

    def fail(self) -> None:
        if self.error is not None:
            raise self.error


def begun() -> Any:
    """Return what a connection with these options uses."""
    config = sasl_config(CONFIG)
    return get_sasl_mechanism(NAME)(**config)


@pytest.fixture(autouse=True)
def registered() -> None:
    register_sasl_mechanism(NAME, Failing, overwrite=True)


@pytest.fixture
def fail_with(monkeypatch: pytest.MonkeyPatch) -> Callable[[Exception], None]:
    return lambda error: monkeypatch.setattr(Failing, "error", error)


USES: list[Callable[[Any], Any]] = [
    lambda _: begun(),
    lambda mechanism: mechanism.auth_bytes(),
    lambda mechanism: mechanism.receive(b""),
]


@pytest.mark.parametrize("use", USES, ids=["constructor", "auth_bytes", "receive"])
def test_mechanism_when_it_fails_then_its_connection_does(
    fail_with: Callable[[Exception], None], use: Callable[[Any], Any]
) -> None:
    mechanism = begun()
    fail_with(OSError("no answer"))
    with pytest.raises(KafkaConnectionError, match="sasl_mechanism=FAILING: OSError"):
        use(mechanism)


def test_mechanism_when_its_error_is_one_of_kafka_then_it_stays(
    fail_with: Callable[[Exception], None],
) -> None:
    mechanism = begun()
    fail_with(KafkaConfigurationError("no region"))
    with pytest.raises(KafkaConfigurationError):
        mechanism.auth_bytes()


def test_mechanism_when_options_are_read_again_then_is_the_same() -> None:
    assert type(begun()) is type(begun())
