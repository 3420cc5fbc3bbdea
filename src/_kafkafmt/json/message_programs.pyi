from enum import IntEnum
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

STEP_DTYPE: np.dtype[np.void]
STRUCT_DTYPE: np.dtype[np.void]

class FieldKind(IntEnum):
    BOOL = 0
    INT8 = 1
    INT16 = 2
    UINT16 = 3
    INT32 = 4
    UINT32 = 5
    INT64 = 6
    FLOAT64 = 7
    UUID = 8
    STRING = 9
    BYTES = 10
    STRUCT = 11

@final
class MessagePrograms:
    def __init__(self, steps: NDArray[Any], structs: NDArray[Any], texts: bytes) -> None: ...
    def __len__(self) -> int: ...
