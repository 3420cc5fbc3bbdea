"""The options of consumers, checked and completed as kafka-python's KafkaConsumer does."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from kafka import KafkaConsumer
from kafka.errors import KafkaConfigurationError
from kafka.metrics import MetricConfig, Metrics

from kafkafmt._util.names import unknown_name
from kafkafmt.client.client_config import with_hidden_secrets
from kafkafmt.memory.budget import MemoryBudget

log = logging.getLogger(__name__)

_FETCH_SIZES = ("fetch_min_bytes", "fetch_max_bytes", "max_partition_fetch_bytes")
_RESET_NAMES = {"smallest": "earliest", "largest": "latest"}
# Brokers from this version on let a session time out after 45 s (KIP-735), and have a separate poll interval.
_LONG_SESSIONS = (3, 0)
_POLL_INTERVALS = (0, 10, 1)


def consumer_config(defaults: Mapping[str, Any], configs: Mapping[str, Any]) -> dict[str, Any]:
    """Return all options. Raises KafkaConfigurationError for unknown options, and for values that do not fit.

    Raises ValueError for a negative size, and TypeError for a size that is no integer and for no MemoryBudget.
    """
    for name in configs:
        if name not in defaults:
            raise KafkaConfigurationError(unknown_name("client option", name, defaults))
    config = with_hidden_secrets({**defaults, **configs})
    reset = config["auto_offset_reset"]
    if reset in _RESET_NAMES:
        log.warning("use auto_offset_reset=%s (%s is deprecated)", _RESET_NAMES[reset], reset)
        config["auto_offset_reset"] = _RESET_NAMES[reset]
    if config["isolation_level"] not in ("read_uncommitted", "read_committed"):
        raise KafkaConfigurationError("Unrecognized isolation_level")
    times = ("fetch_max_wait_ms", "request_timeout_ms", "connections_max_idle_ms")
    shortest, middle, longest = (config[name] for name in times)
    if not shortest < middle < longest:
        raise KafkaConfigurationError(
            f"connections_max_idle_ms ({longest}) must be larger than request_timeout_ms ({middle}) which must be "
            f"larger than fetch_max_wait_ms ({shortest})."
        )
    for name in _FETCH_SIZES:
        _check_size(name, config[name])
    if not isinstance(config["budget"], MemoryBudget | None):
        raise TypeError(f"budget: expected a MemoryBudget, found {config['budget']!r}")
    if config["group_instance_id"] is not None and config["group_id"] is None:
        raise KafkaConfigurationError("group_instance_id requires group_id")
    # A response has headers, and at least one batch, which may be larger than `fetch_max_bytes`.
    most = config["fetch_max_bytes"] + config["max_partition_fetch_bytes"]
    config["receive_message_max_bytes"] = max(config["receive_message_max_bytes"], most)
    return config


def _check_size(name: str, size: object) -> None:
    if not isinstance(size, int) or isinstance(size, bool):
        raise TypeError(f"{name}: expected a number of bytes, found {size!r}")
    if size < 0:
        raise ValueError(f"{name}: expected 0 bytes or more, found {size}")


def adjust_timeouts(
    config: dict[str, Any], configs: Mapping[str, Any], broker_version: tuple[int, ...]
) -> None:
    """Set `api_version`, and the timeouts of groups to what brokers of this version take, unless `configs` has them."""
    config["api_version"] = broker_version
    if "session_timeout_ms" not in configs:
        if broker_version < _POLL_INTERVALS and "max_poll_interval_ms" in configs:
            config["session_timeout_ms"] = config["max_poll_interval_ms"]
        elif broker_version < _LONG_SESSIONS:
            config["session_timeout_ms"] = KafkaConsumer.DEFAULT_SESSION_TIMEOUT_MS_PRE_KIP_735
    if "max_poll_interval_ms" not in configs and broker_version < _POLL_INTERVALS:
        config["max_poll_interval_ms"] = config["session_timeout_ms"]


def metrics_of(config: Mapping[str, Any]) -> Metrics | None:
    """Return kafka-python's registry of metrics with the reporters of the options; None without `metrics_enabled`."""
    if not config["metrics_enabled"]:
        return None
    settings = MetricConfig(
        samples=config["metrics_num_samples"],
        time_window_ms=config["metrics_sample_window_ms"],
        tags={"client-id": config["client_id"]},
    )
    return Metrics(settings, [reporter() for reporter in config["metric_reporters"]])
