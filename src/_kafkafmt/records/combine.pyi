from collections.abc import Callable, Mapping
from typing import final

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Buffer

from _kafkafmt.batches.scan import BatchRun

@final
class RecordCombiner:
    @property
    def records_size(self) -> int: ...
    def __init__(self, decompress: Mapping[int, Callable[[memoryview, int], Buffer]], limit: int) -> None: ...
    def __len__(self) -> int: ...
    def gather(
        self,
        run: BatchRun,
        numbers: NDArray[np.int64],
        first: int,
        max_size: int,
        *,
        log_append_time: bool = ...,
    ) -> int: ...
    def source_ranges(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]: ...
    def build(self, codec: int, compress: Callable[[memoryview], Buffer] | None = ...) -> memoryview: ...
