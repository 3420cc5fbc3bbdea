"""What `CompressionRatioEstimator` is held against: Kafka's estimate before KIP-126, and the KIP's words."""

from __future__ import annotations

from kafkafmt import Codec


class SlidingAverage:
    """What Kafka had until KIP-126: a weighted average of the latest ratios of a codec, whatever the topic.

    As in `Compressor` of Kafka 0.10: the average starts at 0.5 for every codec, each batch counts a tenth in
    it, and nothing resets it.
    """

    contingency_factor = 1.05
    INITIAL_RATIO = 0.5
    DAMPING_FACTOR = 0.9

    def __init__(self) -> None:
        self._ratios: dict[Codec, float] = {}

    def estimate(self, topic: str, codec: Codec) -> float:
        return self._ratios.get(codec, self.INITIAL_RATIO)

    def observe(self, topic: str, codec: Codec, ratio: float) -> float:
        before = self.estimate(topic, codec)
        self._ratios[codec] = before * self.DAMPING_FACTOR + ratio * (1 - self.DAMPING_FACTOR)
        return self._ratios[codec]

    def reset(self, topic: str) -> None:
        """It knows no topics."""


class UnclampedSteps:
    """KIP-126 to the letter ("Proposed Changes"): a step down or a step up, wherever that leads."""

    contingency_factor = 1.05
    INITIAL_RATIO = 1.0
    IMPROVING_STEP = 0.005
    DETERIORATING_STEP = 0.05

    def __init__(self) -> None:
        self._ratios: dict[tuple[str, Codec], float] = {}

    def estimate(self, topic: str, codec: Codec) -> float:
        return self._ratios.get((topic, codec), self.INITIAL_RATIO)

    def observe(self, topic: str, codec: Codec, ratio: float) -> float:
        current = self.estimate(topic, codec)
        if ratio < current:
            current -= self.IMPROVING_STEP
        elif ratio > current:
            current += self.DETERIORATING_STEP
        self._ratios[topic, codec] = current
        return current

    def reset(self, topic: str) -> None:
        for codec in Codec:
            self._ratios.pop((topic, codec), None)
