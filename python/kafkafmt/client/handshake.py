"""The first requests of a connection: the versions that the broker knows, then SASL (KIP-35, KIP-152, KIP-368).

The messages are kafka-python's, and so are the SASL mechanisms. The caller exchanges them with the broker.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import kafka.errors as kafka_errors
from kafka.net.sasl import get_sasl_mechanism
from kafka.protocol.broker_version_data import BrokerVersionData
from kafka.protocol.metadata import ApiVersionsRequest
from kafka.protocol.sasl import SaslAuthenticateRequest, SaslBytesRequest, SaslHandshakeRequest

from kafkafmt.client.kafka_python import sasl_config

# Sends a request of kafka-python, and returns the response.
Exchange = Callable[[Any], Awaitable[Any]]

_SASL_PROTOCOLS = ("SASL_PLAINTEXT", "SASL_SSL")
# From this version of SaslHandshake on, tokens are sent in SaslAuthenticate requests.
_FRAMED_TOKENS = 1
# From this version of SaslAuthenticate on, a response has the lifetime of the session.
_SESSION_LIFETIME = 1
_LEAST_LIFETIME_MS = 1000


async def negotiate_versions(exchange: Exchange, config: Mapping[str, Any]) -> tuple[BrokerVersionData, Any]:
    """Return the versions of each API that the broker knows, or that the option `api_version` stands for, if older.

    Also returns the broker's response to ApiVersions; None for an option that stands for a broker without that API.
    """
    configured = None if config["api_version"] is None else BrokerVersionData(config["api_version"])
    version = ApiVersionsRequest.max_version
    if configured is not None:
        try:
            version = configured.api_version(ApiVersionsRequest)
        except kafka_errors.IncompatibleBrokerVersion:  # a broker without ApiVersions
            return configured, None
    response = await exchange(_versions_request(version, config))
    if response.error_code == kafka_errors.UnsupportedVersionError.errno:
        known = {api.api_key: api.max_version for api in response.api_keys}
        version = min(version, known.get(ApiVersionsRequest.API_KEY, 0))
        response = await exchange(_versions_request(version, config))
    _raise_for(response.error_code)
    found = BrokerVersionData(
        api_versions={api.api_key: (api.min_version, api.max_version) for api in response.api_keys}
    )
    return found if configured is None or found < configured else configured, response


def _versions_request(version: int, config: Mapping[str, Any]) -> ApiVersionsRequest:
    return ApiVersionsRequest(
        version=version,
        client_software_name=config["client_software_name"],
        client_software_version=config["client_software_version"],
    )


def uses_sasl(config: Mapping[str, Any]) -> bool:
    """Return whether the option `security_protocol` asks for SASL."""
    return config["security_protocol"] in _SASL_PROTOCOLS


async def authenticate(
    exchange: Exchange, versions: BrokerVersionData, host: str, config: Mapping[str, Any]
) -> float | None:
    """Authenticate as the sasl_ options say. Return after how many seconds to do so again; None for never.

    host: the name of the broker's host, which some mechanisms need.

    Raises SaslAuthenticationFailedError and UnsupportedSaslMechanismError.
    """
    name = config["sasl_mechanism"]
    framing = versions.api_version(SaslHandshakeRequest, max_version=_FRAMED_TOKENS)
    response = await exchange(SaslHandshakeRequest(version=framing, mechanism=name))
    if response.error_code == kafka_errors.UnsupportedSaslMechanismError.errno:
        raise kafka_errors.UnsupportedSaslMechanismError(
            f"sasl_mechanism: expected one that the broker has enabled ({', '.join(response.mechanisms)}), found {name}"
        )
    _raise_for(response.error_code)
    mechanism = get_sasl_mechanism(name)(host=host, **sasl_config(config))
    lifetime_ms = 0
    while not mechanism.is_done():
        # A token may come from another server, and SCRAM hashes a password thousands of times.
        token = await _in_thread(mechanism.auth_bytes)
        if framing < _FRAMED_TOKENS:
            response = await exchange(SaslBytesRequest(token))
            if mechanism.is_done():
                break
        else:
            version = versions.api_version(
                SaslAuthenticateRequest, max_version=SaslAuthenticateRequest.max_version
            )
            response = await exchange(SaslAuthenticateRequest(version=version, auth_bytes=token))
            if response.error_code:
                error = kafka_errors.for_code(response.error_code)
                is_named = error is kafka_errors.SaslAuthenticationFailedError  # by the exception itself
                name = "" if is_named else f"{error.__name__}: "
                raise kafka_errors.SaslAuthenticationFailedError(f"{name}{response.error_message}")
            if version >= _SESSION_LIFETIME:
                lifetime_ms = response.session_lifetime_ms
        await _in_thread(mechanism.receive, response.auth_bytes)
    if not mechanism.is_authenticated():
        raise kafka_errors.SaslAuthenticationFailedError(f"the broker did not prove its identity ({name})")
    if lifetime_ms <= 0:
        return None
    # As Kafka's clients: not all at once, and before the broker closes the connection.
    return max(lifetime_ms, _LEAST_LIFETIME_MS) / 1000 * random.uniform(0.85, 0.95)


async def _in_thread(function: Callable[..., Any], *args: Any) -> Any:
    """Call a function in another thread; in this one at the end of the program, when no others can be started."""
    try:
        call = asyncio.get_running_loop().run_in_executor(None, function, *args)
    except RuntimeError:
        return function(*args)
    return await call


def _raise_for(error_code: int) -> None:
    if error_code:
        raise kafka_errors.for_code(error_code)()
