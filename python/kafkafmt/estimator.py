"""The compression ratio that a producer may expect, learned per topic and codec (KIP-126)."""

from __future__ import annotations

import math
import threading

from kafkafmt.types import Codec


class CompressionRatioEstimator:
    """Estimates compressed over uncompressed size from the ratios that were observed.

    Starts at 1.0. An observed ratio below the estimate lowers it by `improving_step`, never past what was
    observed; one above raises it by `deteriorating_step`, or to what was observed if that is more. A batch
    that had to be split resets its topic. KIP-126 ("Proposed Changes") has no such clamps; Kafka's
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
        if not 0 < contingency_factor < math.inf:
            raise ValueError(
                f"contingency_factor: expected more than 0, and finite, found {contingency_factor}"
            )
        self.improving_step = improving_step
        self.deteriorating_step = deteriorating_step
        self.contingency_factor = contingency_factor
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
