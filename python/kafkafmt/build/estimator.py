"""Estimators of a producer's compression ratio, per topic and codec (KIP-126), and their names in options.

A signal handler that appends may call an estimator within another call of its thread, so the locks are re-entrant. That
is safe: no step of a call leaves its data incomplete. At most, the outer call overwrites what the inner one observed.
"""

from __future__ import annotations

import math
import threading
from collections import defaultdict, deque
from collections.abc import Callable
from typing import Protocol, SupportsFloat, runtime_checkable

from kafkafmt.types import Codec, CodecLike, as_codec


@runtime_checkable
class RatioEstimator(Protocol):
    """Estimates the compression ratio by which a producer sizes its batches."""

    contingency_factor: float

    def estimate(self, topic: str, codec: Codec) -> float:
        """Return the expected ratio of compressed to uncompressed size of the next batch."""

    def observe(self, topic: str, codec: Codec, ratio: float) -> float:
        """Record the ratio of a batch; return the new estimate."""

    def set(self, topic: str, codec: Codec, ratio: float) -> None:
        """Set the estimate, after a broker refused a batch that compression had made larger."""

    def reset(self, topic: str) -> None:
        """Forget the ratios of a topic, after a broker refused one of its batches as too large."""


class CompressionRatioEstimator:
    """Estimates the ratio of compressed to uncompressed size, as Kafka's CompressionRatioEstimator does.

    The estimate starts at 1.0. An observed ratio below the estimate lowers it by `improving_step`, but not below the
    observed ratio. An observed ratio above raises it by `deteriorating_step`, or to the observed ratio if that is more.
    These two limits are Kafka's; KIP-126 ("Proposed Changes") does not have them. A batch that was refused and split
    resets its topic.

    The size of a batch that is being filled is estimated as its uncompressed size times the ratio times
    `contingency_factor`. `RecordBatchBuilder` takes both.

    Raises ValueError for a step that is negative or not finite, and for a factor that is not above 0.

    Safe to use from several threads.

    >>> estimator = CompressionRatioEstimator()
    >>> estimator.observe("clicks", Codec.LZ4, 0.25)
    0.995
    """

    def __init__(
        self,
        *,
        improving_step: float = 0.005,
        deteriorating_step: float = 0.05,
        contingency_factor: float = 1.05,
    ) -> None:
        for name, step in (("improving_step", improving_step), ("deteriorating_step", deteriorating_step)):
            if not 0 <= step < math.inf:
                raise ValueError(f"{name}: expected 0 or more, and finite, found {step}")
        _check_factor(contingency_factor)
        self.improving_step = improving_step
        self.deteriorating_step = deteriorating_step
        self.contingency_factor = contingency_factor
        self._ratios: dict[tuple[str, Codec], float] = {}
        self._lock = threading.RLock()

    def estimate(self, topic: str, codec: CodecLike) -> float:
        """Return the expected ratio of the next batch."""
        return self._ratios.get((topic, as_codec(codec)), 1.0)

    def observe(self, topic: str, codec: CodecLike, ratio: float) -> float:
        """Record the ratio of a batch; return the new estimate. Raises ValueError if it is negative or not finite."""
        _check_ratio(ratio)
        with self._lock:
            current = self._ratios.get((topic, as_codec(codec)), 1.0)
            if ratio > current:
                current = max(current + self.deteriorating_step, ratio)
            elif ratio < current:
                current = max(current - self.improving_step, ratio)
            self._ratios[topic, as_codec(codec)] = current
            return current

    def set(self, topic: str, codec: CodecLike, ratio: float) -> None:
        """Set the estimate. Raises ValueError if the ratio is negative or not finite."""
        _check_ratio(ratio)
        with self._lock:
            self._ratios[topic, as_codec(codec)] = ratio

    def reset(self, topic: str) -> None:
        """Reset the estimates of a topic, for every codec, to 1.0."""
        with self._lock:
            for codec in Codec:
                self._ratios.pop((topic, codec), None)


class RecentRatioEstimator:
    """Estimates the ratio as the largest of the last `latest` ratios of a topic and codec, or 1.0 if there is none.

    Kafka does not have this estimator. KIP-126 lowers its estimate by 0.005 per batch. So it needs 180 batches from 1.0
    to a ratio of 0.1, and again after every reset; meanwhile batches are far from full. This estimator knows the ratio
    after the first batch. Producers use it by default: in every mix of `make bench` it splits less than 1 % of the
    batches, and its batches are fuller.

    Raises ValueError for a `latest` below 1, and for a factor that is not above 0. Safe to use from several threads.

    >>> estimator = RecentRatioEstimator()
    >>> [estimator.observe("clicks", Codec.LZ4, ratio) for ratio in (0.25, 0.3, 0.2)]
    [0.25, 0.3, 0.3]
    """

    def __init__(self, latest: int = 50, *, contingency_factor: float = 1.05) -> None:
        if latest < 1:
            raise ValueError(f"latest: expected 1 batch or more, found {latest}")
        _check_factor(contingency_factor)
        self.contingency_factor = contingency_factor
        self._ratios: defaultdict[tuple[str, Codec], deque[float]] = defaultdict(lambda: deque(maxlen=latest))
        self._lock = threading.RLock()

    def estimate(self, topic: str, codec: CodecLike) -> float:
        """Return the expected ratio of the next batch."""
        with self._lock:
            return max(self._ratios.get((topic, as_codec(codec)), ()), default=1.0)

    def observe(self, topic: str, codec: CodecLike, ratio: float) -> float:
        """Record the ratio of a batch; return the new estimate. Raises ValueError if it is negative or not finite."""
        _check_ratio(ratio)
        with self._lock:
            ratios = self._ratios[topic, as_codec(codec)]
            ratios.append(ratio)
            return max(ratios)

    def set(self, topic: str, codec: CodecLike, ratio: float) -> None:
        """Replace the observed ratios by this one. Raises ValueError if it is negative or not finite."""
        _check_ratio(ratio)
        with self._lock:
            self._ratios[topic, as_codec(codec)].clear()
            self._ratios[topic, as_codec(codec)].append(ratio)

    def reset(self, topic: str) -> None:
        """Forget the ratios of a topic, for every codec."""
        with self._lock:
            for codec in Codec:
                self._ratios.pop((topic, codec), None)


_ESTIMATORS: dict[str, Callable[[], RatioEstimator]] = {
    "recent": RecentRatioEstimator,
    "kip126": CompressionRatioEstimator,
}


def as_estimator(estimator: RatioEstimator | str) -> RatioEstimator:
    """Return the estimator itself, or a new one: `recent`, a RecentRatioEstimator, or `kip126`, as in KIP-126.

    Raises ValueError for another name, and TypeError for an object without the methods of an estimator.
    """
    if isinstance(estimator, str):
        if estimator not in _ESTIMATORS:
            raise ValueError(f"estimator: expected one of {', '.join(_ESTIMATORS)}, found {estimator!r}")
        return _ESTIMATORS[estimator]()
    if isinstance(estimator, type) or not isinstance(estimator, RatioEstimator):
        raise TypeError(
            f"estimator: expected one of {', '.join(_ESTIMATORS)}, or an object with the methods of "
            f"CompressionRatioEstimator, found {estimator!r}"
        )
    return estimator


def _check_ratio(ratio: float) -> None:
    if not isinstance(ratio, SupportsFloat):
        raise TypeError(f"ratio: expected a number, found {ratio!r}")
    if not 0 <= ratio < math.inf:
        raise ValueError(f"ratio: expected 0 or more, and finite, found {ratio}")


def _check_factor(contingency_factor: float) -> None:
    if not 0 < contingency_factor < math.inf:
        raise ValueError(f"contingency_factor: expected more than 0, and finite, found {contingency_factor}")
