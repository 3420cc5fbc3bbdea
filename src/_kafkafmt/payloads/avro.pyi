from enum import IntEnum
from typing import final

import numpy as np
from numpy.typing import NDArray

class Operation(IntEnum):
    SKIP_NOTHING = 0
    SKIP_VARINT = 1
    SKIP_FIXED = 2
    SKIP_BYTES = 3
    SKIP_RECORD = 4
    SKIP_ARRAY = 5
    SKIP_MAP = 6
    SKIP_UNION = 7
    NULL_VALUE = 8
    BOOLEAN = 9
    INT32 = 10
    INT64 = 11
    SCALED_INT64 = 12
    INTEGER_TO_FLOAT = 13
    INTEGER_TO_DOUBLE = 14
    FLOAT = 15
    FLOAT_TO_DOUBLE = 16
    DOUBLE = 17
    BYTES = 18
    STRING = 19
    FIXED = 20
    ENUM = 21
    DECIMAL_BYTES = 22
    DECIMAL_FIXED = 23
    UUID = 24
    DURATION = 25
    RECORD = 26
    ARRAY = 27
    MAP = 28
    UNION = 29
    MEMBER = 30
    DEFAULT = 31
    REFUSE = 32

class ReadStatus(IntEnum):
    READ = 0
    NO_MEMORY = 1
    TOO_LARGE = 2
    ENDS_EARLY = 3
    VARINT_TOO_LONG = 4
    LENGTH = 5
    NOT_UTF8 = 6
    NUMBER_RANGE = 7
    NOT_BOOLEAN = 8
    ENUM_INDEX = 9
    ENUM_SYMBOL = 10
    BRANCH_INDEX = 11
    BRANCH_REFUSED = 12
    DECIMAL_RANGE = 13
    DURATION_RANGE = 14
    ITEM_COUNT = 15
    BLOCK_SIZE = 16
    EMPTY_ITEMS = 17
    DEPTH = 18
    BYTES_LEFT = 19

@final
class PayloadReader:
    def __init__(
        self,
        steps: NDArray[np.int64],
        nodes: NDArray[np.int64],
        constants: NDArray[np.uint8],
        ranges: NDArray[np.int64],
    ) -> None: ...
    def read(
        self, data: NDArray[np.uint8], starts: NDArray[np.int64], ends: NDArray[np.int64]
    ) -> tuple[
        list[tuple[int, NDArray[np.uint8] | None, NDArray[np.int32] | None, NDArray[np.uint8] | None]],
        NDArray[np.int64],
    ]: ...
