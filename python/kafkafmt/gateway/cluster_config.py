"""The options of the connections to the cluster, checked before they are used."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kafka.net.manager import KafkaConnectionManager
from kafka.net.sasl import get_sasl_mechanism

from kafkafmt.client.handshake import uses_sasl
from kafkafmt.client.tls import ssl_context, uses_tls
from kafkafmt.server.security.tls import TlsError
from kafkafmt.server.security.users import MECHANISMS, PLAIN

# A response that passes is never held, so its size is limited by nothing but Kafka's protocol.
_MAX_FRAME_BYTES = 2**31 - 1
# So many requests of a client may be on their way to a broker. The client limits them itself.
_MAX_IN_FLIGHT = 1000
# A client of a gateway has its own backoff, so that of the gateway is short.
_MAX_BACKOFF_MS = 1000
_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
# By the protocol with SASL: the one without.
_WITHOUT_SASL = {"SASL_PLAINTEXT": "PLAINTEXT", "SASL_SSL": "SSL"}
_FILES = ("ssl_cafile", "ssl_certfile", "ssl_keyfile", "ssl_crlfile")
# Options of kafka-python's clients without an effect in a gateway, by the reason.
_WITHOUT_EFFECT: Mapping[str, str] = {
    "bootstrap_servers": "CLUSTER has the addresses",
    "receive_message_max_bytes": "responses of any size pass",
    "max_in_flight_requests_per_connection": "the clients of the gateway limit their requests",
    **dict.fromkeys(
        (
            "client_dns_lookup",
            "metadata_max_age_ms",
            "metric_group_prefix",
            "metrics",
            "proxy_url",
            "socket_connection_setup_timeout_max_ms",
        ),
        "the gateway does not use it",
    ),
}


def cluster_config(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of the connections, with defaults and an SSL context. Raises TlsError and OSError."""
    config = {
        **KafkaConnectionManager.DEFAULT_CONFIG,
        "reconnect_backoff_max_ms": _MAX_BACKOFF_MS,
        **given,
        "receive_message_max_bytes": _MAX_FRAME_BYTES,
        "max_in_flight_requests_per_connection": _MAX_IN_FLIGHT,
    }
    for name in _FILES if uses_tls(config) else ():
        if config[name] is not None:
            with Path(config[name]).open("rb"):  # errors of the SSL context do not name the file
                pass
    try:
        config["ssl_context"] = ssl_context(config)
    except ssl.SSLError as error:
        files = ", ".join(str(config[name]) for name in _FILES if config[name] is not None)
        raise TlsError(
            f"{files}: {error.reason or error}: expected certificates and keys in PEM form"
        ) from None
    return config


def check_settings(given: Mapping[str, Any]) -> None:
    """Raise ValueError for options without an effect, and for times that are too short."""
    config = {**KafkaConnectionManager.DEFAULT_CONFIG, **given}
    protocol = config["security_protocol"]
    unused: Mapping[str, str] = {
        **_WITHOUT_EFFECT,
        **({} if uses_sasl(config) else _named("sasl_", f"security.protocol={protocol} has no SASL")),
        **({} if uses_tls(config) else _named("ssl_", f"security.protocol={protocol} has no TLS")),
    }
    for name, value in given.items():
        if name in unused:
            raise ValueError(f"{_dotted(name)} has no effect: {unused[name]}")
        least = 0 if "backoff" in name else 1
        if name.endswith("_ms") and value < least:
            raise ValueError(f"{_dotted(name)}: expected {least} or more milliseconds, found {value}")
    if config["ssl_keyfile"] is not None and config["ssl_certfile"] is None:
        raise ValueError("ssl.keyfile needs ssl.certfile")


def _named(prefix: str, reason: str) -> dict[str, str]:
    """Return the options whose names begin like this, each with the reason."""
    return {name: reason for name in KafkaConnectionManager.DEFAULT_CONFIG if name.startswith(prefix)}


def _dotted(name: str) -> str:
    return name.replace("_", ".")


def check_security(given: Mapping[str, Any], *, has_own_identity: bool) -> None:
    """Raise ValueError for options of security that cannot work.

    has_own_identity: whether the gateway authenticates as itself, with a name and a password of the options.
    """
    config = {**KafkaConnectionManager.DEFAULT_CONFIG, **given}
    protocol = config["security_protocol"]
    if protocol not in _PROTOCOLS:
        raise ValueError(f"security.protocol: expected one of {', '.join(_PROTOCOLS)}, found {protocol}")
    if not uses_sasl(config):
        if not has_own_identity:
            raise ValueError(
                f"expected security.protocol=SASL_SSL of the cluster, found {protocol}: users log in by SASL"
            )
        return
    for name in () if has_own_identity else ("sasl_plain_username", "sasl_plain_password"):
        if config[name] is not None:
            raise ValueError(f"{_dotted(name)} has no effect: each user has an own one at the cluster")
    mechanism = config["sasl_mechanism"] or PLAIN
    try:
        get_sasl_mechanism(mechanism)
    except Exception:
        raise ValueError(
            f"sasl.mechanism: expected one of {', '.join(MECHANISMS)}, found {mechanism}"
        ) from None
    if not has_own_identity and mechanism not in MECHANISMS:
        raise ValueError(f"sasl.mechanism: expected one of {', '.join(MECHANISMS)}, found {mechanism}")
    missing = [
        name for name in ("sasl_mechanism", "sasl_plain_username", "sasl_plain_password") if not config[name]
    ]
    if has_own_identity and missing and mechanism in MECHANISMS:
        names = ", ".join(map(_dotted, missing))
        raise ValueError(f"security.protocol={protocol} needs {names}")


def check_passthrough(given: Mapping[str, Any]) -> None:
    """Raise ValueError for options by which the passwords of clients would be sent in plain text."""
    mechanism = given.get("sasl_mechanism") or PLAIN
    if given.get("security_protocol") == "SASL_PLAINTEXT" and mechanism == PLAIN:
        raise ValueError(
            "--sasl-passthrough sends passwords: expected security.protocol=SASL_SSL of the cluster for PLAIN, "
            "found SASL_PLAINTEXT"
        )


def without_sasl(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return options that connect without credentials. A broker answers ApiVersions then, and nothing else."""
    protocol = config["security_protocol"]
    return {**config, "security_protocol": _WITHOUT_SASL.get(protocol, protocol)}
