"""What kafka-python's own connections need to do the same as ours with the same options."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from kafka.errors import KafkaConnectionError, KafkaError, SaslAuthenticationFailedError
from kafka.net.sasl import get_sasl_mechanism, register_sasl_mechanism
from kafka.net.sasl.abc import SaslMechanism
from kafka.net.sasl.scram import SaslMechanismScram

from kafkafmt.client.tls import ssl_context

_SCRAM_MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512")
# Of Kafka's brokers and clients. With fewer iterations, a server could guess the password from the client's proof.
_MIN_ITERATIONS = 4096
_FIRST_FIELDS, _FINAL_FIELDS = ("r", "s", "i"), ("v",)


def kafka_python_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a client of kafka-python, or of its connections, that `config` stands for.

    kafka-python 3.0 cannot read the file of `ssl_crlfile`, and asks on the terminal for the password of a key.

    Raises as `ssl_context`.
    """
    context = ssl_context(config)
    return sasl_config({**config, **({} if context is None else {"ssl_context": context})})


def sasl_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options for kafka-python's mechanisms of SASL: it does not escape user names for SCRAM (RFC 5802).

    An error of the mechanism, such as one of a token provider, ends the connection as one of the network does, so that
    requests are sent again.
    """
    found = dict(config)
    name, mechanism = found.get("sasl_plain_username"), found.get("sasl_mechanism")
    if name is not None and mechanism in _SCRAM_MECHANISMS:
        found["sasl_plain_username"] = name.replace("=", "=3D").replace(",", "=2C")
    with suppress(KeyError):
        _end_connections(mechanism)
    return found


def _end_connections(name: str | None) -> None:
    """Register a subclass of a mechanism whose errors end the connection. Raises KeyError for one that is not known."""
    mechanism = get_sasl_mechanism(name)
    if not issubclass(mechanism, _EndingConnections):
        ending = type(mechanism.__name__, (_EndingConnections, mechanism), {})
        register_sasl_mechanism(name, ending, overwrite=True)


class _EndingConnections(SaslMechanism):  # type: ignore[misc]
    """Raises KafkaConnectionError for each error of a mechanism that is not one of Kafka."""

    def __init__(self, **config: Any) -> None:
        with _connection_errors(config["sasl_mechanism"]):
            super().__init__(**config)
        self._mechanism = config["sasl_mechanism"]

    def auth_bytes(self) -> Any:
        with _connection_errors(self._mechanism):
            return super().auth_bytes()

    def receive(self, auth_bytes: bytes) -> Any:
        with _connection_errors(self._mechanism):
            return super().receive(auth_bytes)


@contextmanager
def _connection_errors(mechanism: str) -> Iterator[None]:
    try:
        yield
    except KafkaError:
        raise
    except Exception as error:
        raise KafkaConnectionError(f"sasl_mechanism={mechanism}: {error!r}") from error


class ScramMechanism(SaslMechanism):  # type: ignore[misc]
    """kafka-python's SCRAM, but it refuses few iterations, as Java's clients do.

    Raises SaslAuthenticationFailedError for messages that are refused.
    """

    def __init__(self, **config: Any) -> None:
        self._name = config["sasl_mechanism"]
        self._scram = SaslMechanismScram(**config)
        self._expected = [_FINAL_FIELDS, _FIRST_FIELDS]

    def auth_bytes(self) -> bytes:
        token: bytes = self._scram.auth_bytes()
        return token

    def receive(self, auth_bytes: bytes) -> bool:
        try:
            _check_scram(auth_bytes.decode(), self._expected.pop())
            is_done: bool = self._scram.receive(auth_bytes)
        except ValueError as error:
            raise SaslAuthenticationFailedError(f"{self._name}: {error}") from error
        return is_done

    def is_done(self) -> bool:
        return bool(self._scram.is_done())

    def is_authenticated(self) -> bool:
        return bool(self._scram.is_authenticated())

    def auth_details(self) -> str:
        return str(self._scram.auth_details())


def _check_scram(message: str, expected: tuple[str, ...]) -> None:
    """Raise ValueError for a message of a broker without the expected fields, or with too few iterations."""
    fields = dict(pair.partition("=")[::2] for pair in message.split(","))
    if "e" in fields:
        raise ValueError(f"the broker refused: {fields['e']}")
    missing = [name for name in expected if name not in fields]
    if missing:
        raise ValueError(f"the broker's message lacks {', '.join(missing)}")
    if "i" in expected and int(fields["i"]) < _MIN_ITERATIONS:
        raise ValueError(f"expected at least {_MIN_ITERATIONS} iterations, found {fields['i']}")


for _mechanism in _SCRAM_MECHANISMS:
    # kafka-python's connections look mechanisms up by these names.
    register_sasl_mechanism(_mechanism, ScramMechanism, overwrite=True)
