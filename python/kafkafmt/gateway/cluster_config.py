"""The options of the connections to the cluster, checked before they are used."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kafka.net.manager import KafkaConnectionManager

from kafkafmt.client.handshake import uses_sasl
from kafkafmt.client.tls import ssl_context
from kafkafmt.server.security.users import MECHANISMS, PLAIN

# A response that passes is never held, so its size is limited by nothing but Kafka's protocol.
_MAX_FRAME_BYTES = 2**31 - 1
# So many requests of a client may be on their way to a broker. The client limits them itself.
_MAX_IN_FLIGHT = 1000
# A client of a gateway has its own backoff, so that of the gateway is short.
_MAX_BACKOFF_MS = 1000
# By the protocol with SASL: the one without.
_WITHOUT_SASL = {"SASL_PLAINTEXT": "PLAINTEXT", "SASL_SSL": "SSL"}
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
    return {**config, "ssl_context": ssl_context(config)}


def check_settings(given: Mapping[str, Any]) -> None:
    """Raise ValueError for options without an effect, and for times that are too short."""
    for name, value in given.items():
        if name in _WITHOUT_EFFECT:
            raise ValueError(f"{_dotted(name)} has no effect: {_WITHOUT_EFFECT[name]}")
        least = 0 if "backoff" in name else 1
        if name.endswith("_ms") and value < least:
            raise ValueError(f"{_dotted(name)}: expected {least} or more milliseconds, found {value}")


def _dotted(name: str) -> str:
    return name.replace("_", ".")


def check_identities(given: Mapping[str, Any]) -> None:
    """Raise ValueError for options by which users cannot log in at the cluster with identities of their own."""
    config = {**KafkaConnectionManager.DEFAULT_CONFIG, **given}
    if not uses_sasl(config):
        raise ValueError(
            f"expected security.protocol=SASL_SSL of the cluster, found {config['security_protocol']}: users log in "
            "by SASL"
        )
    for name in ("sasl_plain_username", "sasl_plain_password"):
        if config[name] is not None:
            raise ValueError(f"{_dotted(name)} has no effect: each user has an own one at the cluster")
    mechanism = config["sasl_mechanism"] or PLAIN
    if mechanism not in MECHANISMS:
        raise ValueError(f"sasl.mechanism: expected one of {', '.join(MECHANISMS)}, found {mechanism}")


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
