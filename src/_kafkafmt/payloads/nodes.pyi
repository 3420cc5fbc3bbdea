from enum import IntEnum
from typing import TypeAlias, final

import numpy as np
from numpy.typing import NDArray

class Layout(IntEnum):
    EMPTY = 0
    PLAIN = 1
    TEXT = 2
    LIST = 3
    STRUCT = 4

# The length of a node, its validity, its offsets, and its data.
NodeArrays: TypeAlias = tuple[
    int, NDArray[np.uint8] | None, NDArray[np.int32] | None, NDArray[np.uint8] | None
]

@final
class Memory:
    def __buffer__(self, flags: int, /) -> memoryview: ...

@final
class NodeColumns:
    def __init__(self, specifications: NDArray[np.int64]) -> None: ...
    def take(self) -> list[NodeArrays]: ...
