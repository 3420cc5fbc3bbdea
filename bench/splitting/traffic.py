"""The records of the experiment: topics alike or not, as the producer of a mirror gets them, by a seed.

A value is random bytes, and behind them text that says nothing new: so many of them make its ratio what it is
meant to be, alike for every codec within a percent or two. No value comes again within what a codec looks back.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import cycle

from kafkafmt import Codec

Arrival = tuple[str, bytes]

KB, MB = 1_000, 1_000_000
VALUE_BYTES = 1_000
# zstd looks back 2 MiB at its default level.
_POOL_BYTES = 4 * MB
_TEXT = (
    b'{"type":"order","state":"shipped from the warehouse","currency":"EUR","channel":"web","items":[]}'
    * 11_000
)
# What a record takes of a batch beside its random bytes: its sizes, deltas, and the codec's reference to the text.
_OVERHEAD_BYTES = 15


@dataclass(frozen=True)
class Mix:
    """Records of one or more topics, in the order in which a producer is given them.

    limit: the largest batch that the broker takes; batch_size: what the producer aims at; both in bytes.
    queued: batches that wait for the sender, so that their ratios are learned so much later.
    """

    name: str
    arrivals: Callable[[], Iterator[Arrival]]
    limit: int = 100 * KB
    batch_size: int = 100 * KB
    queued: int = 0
    codecs: tuple[Codec, ...] = (Codec.LZ4, Codec.ZSTD)


def values(ratio: float, size: int, seed: int) -> Iterator[bytes]:
    """Values of `size` bytes, half or one and a half times that, which a codec shrinks to `ratio`; endless."""
    chosen = random.Random(seed)
    pool = []
    for _ in range(max(_POOL_BYTES // size, 8)):
        length = size * chosen.choice((2, 3, 4, 5, 6)) // 4
        incompressible = max(min(round(length * ratio) - _OVERHEAD_BYTES, length), 8)
        pool.append(chosen.randbytes(incompressible) + _TEXT[: length - incompressible])
    return cycle(pool)


def topics(*ratios: float, total: int, size: int = VALUE_BYTES) -> Callable[[], Iterator[Arrival]]:
    """A topic for each ratio, their records in random order, `total` bytes in all."""

    def arrivals() -> Iterator[Arrival]:
        chosen = random.Random(126)
        sources = [(f"topic-{n}", values(ratio, size, n)) for n, ratio in enumerate(ratios)]
        left = total
        while left > 0:
            topic, source = chosen.choice(sources)
            value = next(source)
            left -= len(value)
            yield topic, value

    return arrivals


def one_after_the_other(*ratios: float, total: int, size: int) -> Callable[[], Iterator[Arrival]]:
    """A topic for each ratio, each when the one before it has ended."""

    def arrivals() -> Iterator[Arrival]:
        for number, ratio in enumerate(ratios):
            for _, value in topics(ratio, total=total // len(ratios), size=size)():
                yield f"topic-{number}", value

    return arrivals


def runs(
    *ratios: float, total: int, run_bytes: int, size: int = VALUE_BYTES
) -> Callable[[], Iterator[Arrival]]:
    """One topic, whose records have one of the ratios for about `run_bytes`, and then another one."""

    def arrivals() -> Iterator[Arrival]:
        chosen = random.Random(126)
        sources = [values(ratio, size, n) for n, ratio in enumerate(ratios)]
        left = total
        while left > 0:
            source = chosen.choice(sources)
            run = chosen.expovariate(1 / run_bytes)
            while run > 0:
                value = next(source)
                left -= len(value)
                run -= len(value)
                yield "topic", value

    return arrivals


def kafkas_own() -> Iterator[Arrival]:
    """RecordAccumulatorTest.testSplitFrequency, which the KIP rests on: small numbers among random bytes."""
    chosen = random.Random(126)
    for percentage in range(1, 100):
        for _ in range(1_000):
            if chosen.randrange(100) < percentage:
                value = b"".join(chosen.randrange(1_000).to_bytes(4, "big") for _ in range(25))
            else:
                value = chosen.randbytes(100)
            yield f"topic-{percentage}", value
