"""The parts of a producer, made from its configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from kafka.metrics import MetricConfig, Metrics

from kafkafmt.client import metrics
from kafkafmt.client.control_plane import ControlPlane
from kafkafmt.client.in_flight import InFlightBatches
from kafkafmt.client.io_thread import CoalescedCall, IoThread
from kafkafmt.client.limits import TopicLimits
from kafkafmt.client.producer_accumulator import ProducerAccumulator
from kafkafmt.client.producer_config import accumulator_options
from kafkafmt.client.sender import Sender, SenderOptions, SenderParts
from kafkafmt.client.transactions import Transactions


class ProducerParts(NamedTuple):
    """An I/O thread that is not started yet, and what works in it. transactions: None without idempotence."""

    io: IoThread
    limits: TopicLimits
    transactions: Transactions | None
    accumulator: ProducerAccumulator
    sender: Sender


def open_parts(config: Mapping[str, Any], control: ControlPlane, registry: Metrics | None) -> ProducerParts:
    """Create the accumulator of a producer, and its sender. registry: of its metrics; None to keep none."""
    io = IoThread(f"{config['client_id']}-network-thread")
    in_flight = InFlightBatches()
    transactions = _open_transactions(config, control, in_flight)
    wakeup = CoalescedCall(io, lambda: sender.run())

    def ask(message: Any, on_done: Callable[[Any], object]) -> None:
        def call_back(outcome: Any) -> None:
            on_done(outcome)
            wakeup()  # batches may wait for the answer

        control.ask(message, io, call_back)

    limits = TopicLimits(
        ask,
        is_asked_for=config["topic_limits"],
        max_age_ms=config["metadata_max_age_ms"],
        retry_backoff_ms=config["retry_backoff_ms"],
    )
    accumulator = ProducerAccumulator(
        accumulator_options(config),
        may_wait=lambda: not io.is_current,
        budget=config["budget"],
        estimator=config["estimator"],
        max_message_bytes=limits.max_message_bytes,
        held_until_ms=limits.held_until_ms,
        sequences=transactions,
        wakeup=wakeup,
    )
    counts = metrics.SenderMetrics(registry)
    parts = SenderParts(io, control, accumulator, limits, in_flight, transactions, counts)
    sender = Sender(parts, _sender_options(config), wakeup)
    if registry is not None:
        age = metrics.MetadataAge()
        control.cluster.add_listener(age)
        metrics.register(registry, accumulator, lambda: sender.in_flight_count, age.seconds)
    control.cluster.add_listener(lambda _: wakeup())
    return ProducerParts(io, limits, transactions, accumulator, sender)


def open_metrics(config: Mapping[str, Any]) -> Metrics | None:
    """Return the registry for the metrics; None if they are not wanted."""
    if not config["metrics_enabled"]:
        return None
    settings = MetricConfig(
        samples=config["metrics_num_samples"],
        time_window_ms=config["metrics_sample_window_ms"],
        tags={"client-id": config["client_id"]},
    )
    return Metrics(settings, [reporter() for reporter in config["metric_reporters"]])


def _open_transactions(
    config: Mapping[str, Any], control: ControlPlane, in_flight: InFlightBatches
) -> Transactions | None:
    if not config["enable_idempotence"]:
        return None
    return Transactions(
        config["transactional_id"] or None,
        in_flight=in_flight,
        broker_version=config["api_version"],
        cluster=control.cluster,
        transaction_timeout_ms=config["transaction_timeout_ms"],
        retry_backoff_ms=config["retry_backoff_ms"],
    )


def _sender_options(config: Mapping[str, Any]) -> SenderOptions:
    is_single = config["max_in_flight_requests_per_connection"] == 1
    return SenderOptions(
        acks=config["acks"],
        retries=config["retries"],
        max_request_size=config["max_request_size"],
        request_timeout_ms=config["request_timeout_ms"],
        retry_backoff_ms=config["retry_backoff_ms"],
        client_id=config["client_id"],
        mutes=is_single and not config["enable_idempotence"],
    )
