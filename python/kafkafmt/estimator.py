"""The compression ratio that a producer may expect, learned per topic and codec (KIP-126)."""

from __future__ import annotations

import threading

from kafkafmt.types import Codec


class CompressionRatioEstimator:
    """Estimates compressed over uncompressed size from the ratios that were observed.

    Starts at 1.0. An observed ratio below the estimate lowers it by `improving_step`, never past what was
    observed; one above raises it by `deteriorating_step`, or to what was observed if that is more. A batch
    that had to be split resets its topic. KIP-126 ("Proposed Changes") has no such clamps; Kafka's
    CompressionRatioEstimator has them, and so has this.

    Safe to use from several threads.

    >>> estimator = CompressionRatioEstimator()
    >>> estimator.observe("clicks", Codec.LZ4, 0.25)
    0.995
    """

    def __init__(self, *, improving_step: float = 0.005, deteriorating_step: float = 0.05) -> None:
        self.improving_step = improving_step
        self.deteriorating_step = deteriorating_step
        self._ratios: dict[tuple[str, Codec], float] = {}
        self._lock = threading.Lock()

    def estimate(self, topic: str, codec: Codec) -> float:
        """The ratio to expect of the next batch."""
        with self._lock:
            return self._ratios.get((topic, codec), 1.0)

    def observe(self, topic: str, codec: Codec, ratio: float) -> float:
        """Learn the ratio of a batch; return the new estimate. ValueError for a negative ratio."""
        if not ratio >= 0:
            raise ValueError(f"ratio: expected 0 or more, found {ratio}")
        with self._lock:
            current = self._ratios.get((topic, codec), 1.0)
            if ratio > current:
                current = max(current + self.deteriorating_step, ratio)
            elif ratio < current:
                current = max(current - self.improving_step, ratio)
            self._ratios[topic, codec] = current
            return current

    def reset(self, topic: str) -> None:
        """Forget what was learned of a topic, for every codec, after one of its batches was split."""
        with self._lock:
            for codec in Codec:
                self._ratios.pop((topic, codec), None)
