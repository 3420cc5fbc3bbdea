"""The compression ratio that a producer may expect, learned per topic and codec (KIP-126)."""

from __future__ import annotations

import math
import threading
from collections import defaultdict, deque
from typing import Protocol, runtime_checkable

from kafkafmt.types import Codec, CodecLike, as_codec


@runtime_checkable
class RatioEstimator(Protocol):
    """What sizes the batches of a producer."""

    contingency_factor: float

    def estimate(self, topic: str, codec: Codec) -> float:
        """The ratio of compressed to uncompressed size to expect of the next batch."""

    def observe(self, topic: str, codec: Codec, ratio: float) -> float:
        """Learn the ratio of a batch; return the new estimate."""

    def reset(self, topic: str) -> None:
        """A batch of the topic was refused as too large: what was learned of it is wrong."""


class CompressionRatioEstimator:
    """Estimates compressed over uncompressed size from the ratios that were observed.

    Starts at 1.0. An observed ratio below the estimate lowers it by `improving_step`, never past what was
    observed; one above raises it by `deteriorating_step`, or to what was observed if that is more. A batch
    that was refused and split resets its topic. KIP-126 ("Proposed Changes") has no such clamps; Kafka's
    CompressionRatioEstimator has them, and so has this. `contingency_factor` is what the size of a batch that is
    still being filled is estimated with, on top of the ratio; `RecordBatchBuilder` takes both.

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
        self._lock = threading.Lock()

    def estimate(self, topic: str, codec: CodecLike) -> float:
        """The ratio to expect of the next batch."""
        with self._lock:
            return self._ratios.get((topic, as_codec(codec)), 1.0)

    def observe(self, topic: str, codec: CodecLike, ratio: float) -> float:
        """Learn the ratio of a batch; return the new estimate. ValueError for a negative ratio."""
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
        """Expect this ratio from now on. ValueError for a negative ratio."""
        _check_ratio(ratio)
        with self._lock:
            self._ratios[topic, as_codec(codec)] = ratio

    def reset(self, topic: str) -> None:
        """Forget what was learned of a topic, for every codec, after one of its batches was split."""
        with self._lock:
            for codec in Codec:
                self._ratios.pop((topic, codec), None)


class RecentRatioEstimator:
    """Estimates by the largest of the last `latest` ratios of a topic and codec; 1.0 where there is none.

    Not in Kafka. KIP-126 lowers its estimate by 0.005 a batch, which takes 180 batches from 1.0 to a ratio of 0.1,
    and again after every reset: meanwhile batches are far from full. This one is there with the first batch, and is
    as careful as the worst of the last `latest`. `make bench` compares the two.

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
        self._lock = threading.Lock()

    def estimate(self, topic: str, codec: CodecLike) -> float:
        """The ratio to expect of the next batch."""
        with self._lock:
            return max(self._ratios.get((topic, as_codec(codec)), ()), default=1.0)

    def observe(self, topic: str, codec: CodecLike, ratio: float) -> float:
        """Learn the ratio of a batch; return the new estimate. ValueError for a negative ratio."""
        _check_ratio(ratio)
        with self._lock:
            ratios = self._ratios[topic, as_codec(codec)]
            ratios.append(ratio)
            return max(ratios)

    def set(self, topic: str, codec: CodecLike, ratio: float) -> None:
        """Expect this ratio, and forget those that were observed. ValueError for a negative ratio."""
        _check_ratio(ratio)
        with self._lock:
            self._ratios[topic, as_codec(codec)].clear()
            self._ratios[topic, as_codec(codec)].append(ratio)

    def reset(self, topic: str) -> None:
        """Forget what was learned of a topic, for every codec."""
        with self._lock:
            for codec in Codec:
                self._ratios.pop((topic, codec), None)


def _check_ratio(ratio: float) -> None:
    if not 0 <= ratio < math.inf:
        raise ValueError(f"ratio: expected 0 or more, and finite, found {ratio}")


def _check_factor(contingency_factor: float) -> None:
    if not 0 < contingency_factor < math.inf:
        raise ValueError(f"contingency_factor: expected more than 0, and finite, found {contingency_factor}")
