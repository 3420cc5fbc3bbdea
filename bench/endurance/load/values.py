"""The values of records: each begins with its number in its partition, and with the time when it was sent."""

from __future__ import annotations

import random
import time
from typing import NamedTuple

from bench.segments import json_value

VALUE_BYTES = 1024
_HEAD_BYTES = 40
_POOL = 512


class Values:
    """Makes values of `VALUE_BYTES`, which compress as JSON does."""

    def __init__(self) -> None:
        chosen = random.Random(VALUE_BYTES)
        self._texts = [json_value(chosen, VALUE_BYTES - _HEAD_BYTES) for _ in range(_POOL)]

    def value(self, number: int) -> bytes:
        head = b"%d %d " % (number, time.monotonic_ns())
        return head.ljust(_HEAD_BYTES) + self._texts[number % _POOL]


class Stamp(NamedTuple):
    """number: counts the records of a partition, from 0 on. sent_ns: by the clock that all processes share."""

    number: int
    sent_ns: int


def stamp_of(value: bytes) -> Stamp:
    number, sent_ns = value[:_HEAD_BYTES].split()
    return Stamp(int(number), int(sent_ns))
