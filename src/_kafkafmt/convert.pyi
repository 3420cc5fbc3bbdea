from enum import IntFlag
from typing import final

import numpy as np
from numpy.typing import NDArray

from _kafkafmt.scan import BatchRun

class Outcome(IntFlag):
    DONE = 0
    NEEDS_CODEC = 1
    NEEDS_ROOM = 2
    FAILED = 3

@final
class RunConverter:
    next: int
    position: int
    @property
    def run(self) -> BatchRun: ...
    @property
    def to_magic(self) -> int: ...
    @property
    def first_offset(self) -> int: ...
    @property
    def verify(self) -> bool: ...
    @property
    def records(self) -> int: ...
    @property
    def temporary_bytes(self) -> int: ...
    def __init__(
        self, run: BatchRun, first: int, to_magic: int, first_offset: int, *, verify: bool, position: int
    ) -> None: ...
    def room(self, stop: int) -> int: ...
    def convert(self, out: NDArray[np.uint8], stop: int) -> Outcome: ...
