"""What every producing driver is told: BOOTSTRAP TOPIC COUNT VERSION, of the broker that it speaks to ("-": it asks).

It sends records 0 to COUNT - 1, key and value their number, to partition 0, and ends once all are acknowledged.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator


class Producing:
    def __init__(self) -> None:
        self.bootstrap, self.topic, count, version, *self.options = sys.argv[1:]
        self.count = int(count)
        self.version = None if version == "-" else version

    def records(self) -> Iterator[tuple[bytes, bytes]]:
        for number in range(self.count):
            yield b"k%d" % number, b"v%d" % number
