"""What is measured of the producer path: each row a work of every contender that has it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from bench.peers.sending import CODECS
from bench.rows import KAFKA_PYTHON, OURS
from bench.segments import MIB, Segment

LIBRDKAFKA = "librdkafka"
SEGMENTS = {"100 B": Segment(size=16 * MIB), "1 KiB": Segment(value_size=1024, size=16 * MIB)}
# How many times the processor's seconds of ours kafka-python is to take, and where.
LEAST_TIMES = 5.0
TARGETED = ("lz4", "100 B")


@dataclass(frozen=True)
class Row:
    """works: by contender; needs_broker: they send to one, and wait until it has acknowledged all."""

    name: str
    segment: Segment
    works: dict[str, str]
    needs_broker: bool = False
    least_times: float | None = None


def all_rows() -> Iterator[Row]:
    for label, segment in SEGMENTS.items():
        for codec in CODECS:
            least = LEAST_TIMES if (codec, label) == TARGETED else None
            accumulate = f"accumulate_{codec}"
            yield Row(
                f"producer: append and drain, {codec}, {label}",
                segment,
                {OURS: accumulate, KAFKA_PYTHON: accumulate},
                least_times=least,
            )
            yield Row(
                f"producer: append and drain, {codec}, {label}, in Arrow columns",
                segment,
                {OURS: f"accumulate_columns_{codec}", KAFKA_PYTHON: accumulate},
            )
    for label, segment in SEGMENTS.items():
        for codec in CODECS:
            yield Row(
                f"producer: send to a broker, {codec}, {label}",
                segment,
                dict.fromkeys((OURS, KAFKA_PYTHON, LIBRDKAFKA), f"send_{codec}"),
                needs_broker=True,
                least_times=LEAST_TIMES if (codec, label) == TARGETED else None,
            )
