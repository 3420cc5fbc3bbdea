from enum import IntEnum
from typing import final

import numpy as np
from numpy.typing import NDArray

__pyx_capi__: dict[str, object]

class Layout(IntEnum):
    EMPTY = 0
    PLAIN = 1
    TEXT = 2
    LIST = 3
    STRUCT = 4

def max_column_bytes(payload_bytes: int) -> int: ...

@final
class Memory: ...

@final
class NodeColumns:
    def take(
        self,
    ) -> list[tuple[int, NDArray[np.uint8] | None, NDArray[np.int32] | None, NDArray[np.uint8] | None]]: ...
