"""What kafka-python's own connections need to do the same as ours with the same options."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from kafka.errors import KafkaConnectionError
from kafka.net.sasl.oauth import AbstractTokenProvider

from kafkafmt.client.tls import ssl_context

_SCRAM = "SCRAM-"
_TOKEN_PROVIDER = "sasl_oauth_token_provider"


def kafka_python_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a client of kafka-python, or of its connections, that `config` stands for.

    kafka-python 3.0 cannot read the file of `ssl_crlfile`, and asks on the terminal for the password of a key.

    Raises as `ssl_context`.
    """
    context = ssl_context(config)
    return sasl_config({**config, **({} if context is None else {"ssl_context": context})})


def sasl_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options for kafka-python's mechanisms of SASL: it does not escape user names for SCRAM (RFC 5802).

    An error of a token provider ends the connection as one of the network does, so that requests are sent again.
    """
    found = dict(config)
    name, provider = found.get("sasl_plain_username"), found.get(_TOKEN_PROVIDER)
    if name is not None and (found.get("sasl_mechanism") or "").startswith(_SCRAM):
        found["sasl_plain_username"] = name.replace("=", "=3D").replace(",", "=2C")
    if isinstance(provider, AbstractTokenProvider):
        found[_TOKEN_PROVIDER] = _TokenProvider(provider)
    return found


class _TokenProvider(AbstractTokenProvider):  # type: ignore[misc]
    """Raises KafkaConnectionError for each error of the provider."""

    def __init__(self, provider: AbstractTokenProvider) -> None:
        self._provider = provider

    def token(self) -> str:
        return self._call(self._provider.token)

    def extensions(self) -> dict[str, str]:
        return self._call(self._provider.extensions)

    def _call(self, function: Callable[[], Any]) -> Any:
        try:
            return function()
        except Exception as error:
            raise KafkaConnectionError(f"{_TOKEN_PROVIDER}: {error!r}") from error
