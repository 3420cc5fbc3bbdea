from collections.abc import Callable
from typing import Final, NoReturn, final

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Buffer

from _kafkafmt.batches.scan import BatchRun

DONE: Final[int]
NEEDS_CODEC: Final[int]
NEEDS_ROOM: Final[int]

_Decompress = Callable[[memoryview, int], Buffer]
_Compress = Callable[[memoryview, int | None, int], Buffer]

@final
class RunConverter:
    position: int
    @property
    def next(self) -> int: ...
    @property
    def stop(self) -> int: ...
    @property
    def needed(self) -> int: ...
    @property
    def records(self) -> int: ...
    @property
    def temporary_bytes(self) -> int: ...
    def __init__(
        self,
        to_magic: int,
        first_offset: int,
        ways: dict[int, tuple[_Decompress, int, _Compress]],
        refuse: Callable[[int], NoReturn],
        limit: int,
        *,
        verify: bool,
        max_output: int = ...,
    ) -> None: ...
    def start(self, run: BatchRun, first: int, stop: int) -> None: ...
    def release(self) -> None: ...
    def use_memory(self, memory: NDArray[np.uint8]) -> None: ...
    def room(self) -> int: ...
    def skip_to(self, row: int) -> None: ...
    def convert(self) -> int: ...
