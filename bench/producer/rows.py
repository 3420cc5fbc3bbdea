"""What is measured of the producer path: each row a work of every contender that has it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from bench.clients import PROCESSOR, RATE, Target
from bench.peers.names import KAFKA_PYTHON, LIBRDKAFKA, OURS
from bench.peers.sending import (
    CODECS,
    LARGE,
    SEND,
    SEND_COLUMNS,
    SEND_MANY,
    SMALL,
    Settings,
    work_of,
)
from bench.segments import MIB, Segment

SEGMENTS = {"100 B": Segment(size=16 * MIB), "1 KiB": Segment(value_size=1024, size=16 * MIB)}
# Of the processor seconds that kafka-python takes, and where.
OF_KAFKA_PYTHON = Target(PROCESSOR, 0.2, KAFKA_PYTHON)
TARGETED = ("lz4", "100 B")
OF_LIBRDKAFKA = Target(RATE, 1, LIBRDKAFKA), Target(PROCESSOR, 1, LIBRDKAFKA)
MANY_AT_ONCE = (Target(RATE, 3, LIBRDKAFKA),)


@dataclass(frozen=True)
class Row:
    """works: by contender; needs_broker: they send to one, and wait until it has acknowledged all."""

    name: str
    segment: Segment
    works: dict[str, str]
    targets: tuple[Target, ...] = ()
    needs_broker: bool = False


def all_rows() -> Iterator[Row]:
    for label, segment in SEGMENTS.items():
        for codec in CODECS:
            yield from _accumulating(codec, label, segment)
    for label, segment in SEGMENTS.items():
        for codec in CODECS:
            yield from _sending(codec, label, segment)


def _accumulating(codec: str, label: str, segment: Segment) -> Iterator[Row]:
    accumulate = f"accumulate_{codec}"
    yield Row(
        f"producer: append and drain, {codec}, {label}",
        segment,
        {OURS: accumulate, KAFKA_PYTHON: accumulate},
        (OF_KAFKA_PYTHON,) if (codec, label) == TARGETED else (),
    )
    yield Row(
        f"producer: append and drain, {codec}, {label}, in Arrow columns",
        segment,
        {OURS: f"accumulate_columns_{codec}", KAFKA_PYTHON: accumulate},
    )


def _sending(codec: str, label: str, segment: Segment) -> Iterator[Row]:
    large, small = Settings(codec, LARGE), Settings(codec, SMALL)
    send = work_of(SEND, large)
    yield Row(
        f"producer: send to a broker, {codec}, {label}",
        segment,
        dict.fromkeys((OURS, KAFKA_PYTHON, LIBRDKAFKA), send),
        (*OF_LIBRDKAFKA, *((OF_KAFKA_PYTHON,) if (codec, label) == TARGETED else ())),
        needs_broker=True,
    )
    yield Row(
        f"producer: send to a broker, {codec}, {label}, batches of 16 KiB",
        segment,
        dict.fromkeys((OURS, LIBRDKAFKA), work_of(SEND, small)),
        OF_LIBRDKAFKA,
        needs_broker=True,
    )
    for way in (SEND_MANY, SEND_COLUMNS):
        yield Row(
            f"producer: {way} to a broker, {codec}, {label}",
            segment,
            {OURS: work_of(way, large), LIBRDKAFKA: send},
            MANY_AT_ONCE,
            needs_broker=True,
        )
