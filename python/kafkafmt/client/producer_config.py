"""The configuration of a producer: KafkaProducer's options and kafkafmt's own, checked as KafkaProducer checks them."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping
from itertools import count
from typing import Any

import kafka.errors as kafka_errors
from kafka import KafkaProducer
from kafka.serializer import Serializer, SerializeWrapper

from kafkafmt._util.names import unknown_name
from kafkafmt.build.estimator import as_estimator
from kafkafmt.client.accumulator import AccumulatorOptions
from kafkafmt.client.client_config import with_hidden_secrets
from kafkafmt.memory import MemoryBudget
from kafkafmt.types import Codec

log = logging.getLogger(__name__)

_CODECS = {None: Codec.NONE, "gzip": Codec.GZIP, "snappy": Codec.SNAPPY, "lz4": Codec.LZ4, "zstd": Codec.ZSTD}
_ACKS = (0, 1, -1, "all")
_ALL = -1
# The most requests in flight with which brokers recognise duplicates.
_MAX_IN_FLIGHT = 5
# The first brokers with message format v2.
_OLDEST_BROKER = (0, 11)
_OLDEST_WITH_ZSTD = (2, 1)
# `kafka_client` would replace connections that this producer does not have.
_WITHOUT = ("kafka_client",)
_clients = count(1)

DEFAULT_CONFIG: dict[str, Any] = {
    **{name: value for name, value in KafkaProducer.DEFAULT_CONFIG.items() if name not in _WITHOUT},
    "buffer_memory": AccumulatorOptions.buffer_memory,
    "budget": None,
    "compression_level": None,
    "estimator": "recent",
    "topic_limits": True,
}


def producer_config(given: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration that `given` stands for.

    Raises ValueError, TypeError and KafkaConfigurationError for options that are unknown, out of range or contradict
    each other.
    """
    for name in given:
        if name not in defaults:
            raise ValueError(unknown_name("client option", name, defaults))
    config = with_hidden_secrets({**defaults, **given})
    _check_types(config)
    for name in ("key_serializer", "value_serializer"):
        if config[name] is not None and not isinstance(config[name], Serializer):
            warnings.warn(
                f"{name} does not implement kafka.serializer.Serializer", DeprecationWarning, stacklevel=4
            )
            config[name] = SerializeWrapper(config[name])
    if config["client_id"] is None:
        config["client_id"] = f"kafka-python-producer-{next(_clients)}"
    if config["acks"] == "all":
        config["acks"] = _ALL
    if isinstance(config["api_version"], str):
        version = config["api_version"]
        config["api_version"] = None if version == "auto" else tuple(map(int, version.split(".")))
    if config["delivery_timeout_ms"] < config["linger_ms"] + config["request_timeout_ms"]:
        raise kafka_errors.KafkaConfigurationError(
            "Must set delivery_timeout_ms higher than linger_ms + request_timeout_ms"
        )
    _set_idempotence(config, given)
    return config


def _check_types(config: Mapping[str, Any]) -> None:
    accumulator_options(config)
    as_estimator(config["estimator"])
    budget = config["budget"]
    if not isinstance(budget, MemoryBudget | None):
        raise TypeError(f"budget: expected a MemoryBudget, found {budget!r}")
    if config["acks"] not in _ACKS:
        raise ValueError(f"acks: expected 0, 1, -1 or 'all', found {config['acks']!r}")
    if config["compression_type"] not in _CODECS:
        raise ValueError(f"Not supported codec: {config['compression_type']}")


def _set_idempotence(config: dict[str, Any], given: Mapping[str, Any]) -> None:
    """Decide whether the producer is idempotent, as KafkaProducer does. It then asks for all acknowledgements."""
    is_wanted = "enable_idempotence" in given
    if is_wanted and not config["enable_idempotence"] and config["transactional_id"]:
        raise kafka_errors.KafkaConfigurationError("Cannot set transactional_id without enable_idempotence.")
    if config["transactional_id"]:
        config["enable_idempotence"] = is_wanted = True
    if not config["enable_idempotence"]:
        return
    in_flight = "max_in_flight_requests_per_connection"
    conflicts = [
        f"{name}={config[name]!r}"
        for name, is_valid in (
            ("acks", config["acks"] == _ALL),
            ("retries", config["retries"] != 0),
            (in_flight, config[in_flight] <= _MAX_IN_FLIGHT),
        )
        if name in given and not is_valid
    ]
    if not conflicts:
        config["acks"] = _ALL
        return
    if is_wanted:
        raise kafka_errors.KafkaConfigurationError(
            f"enable_idempotence=True is incompatible with user-provided {', '.join(conflicts)}"
        )
    log.warning("idempotence is disabled, because of %s", ", ".join(conflicts))
    config["enable_idempotence"] = False


def accumulator_options(config: Mapping[str, Any]) -> AccumulatorOptions:
    """Return the options of the accumulator. Raises ValueError for a number out of range, TypeError for no number."""
    return AccumulatorOptions(
        batch_size=config["batch_size"],
        buffer_memory=config["buffer_memory"],
        linger_ms=config["linger_ms"],
        codec=_CODECS.get(config["compression_type"], Codec.NONE),
        level=config["compression_level"],
        delivery_timeout_ms=config["delivery_timeout_ms"],
        retry_backoff_ms=config["retry_backoff_ms"],
        max_block_ms=config["max_block_ms"],
    )


def ensure_broker_takes(config: Mapping[str, Any]) -> None:
    """Raise an error if a broker of `api_version` does not know message format v2, or the codec."""
    version = config["api_version"]
    if version < _OLDEST_BROKER:
        raise kafka_errors.UnsupportedVersionError(
            f"kafkafmt.net.Producer writes message format v2: expected a broker of 0.11 or later, "
            f"found {'.'.join(map(str, version))}"
        )
    if config["compression_type"] == "zstd" and version < _OLDEST_WITH_ZSTD:
        raise ValueError("Zstd Requires >= Kafka 2.1 Brokers")
