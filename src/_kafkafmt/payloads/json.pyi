from enum import IntEnum
from typing import final

import numpy as np
from numpy.typing import NDArray

class Operation(IntEnum):
    STRING = 0
    ANY = 1
    BOOLEAN = 2
    INTEGER = 3
    FLOAT = 4
    DOUBLE = 5
    DECIMAL = 6
    TIMESTAMP = 7
    DATE = 8
    NOTHING = 9
    LIST = 10
    MAP = 11
    OBJECT = 12

class ReadStatus(IntEnum):
    READ = 0
    NO_MEMORY = 1
    TOO_LARGE = 2
    ENDS_EARLY = 3
    NO_VALUE = 4
    NO_NAME = 5
    NO_COLON = 6
    NO_COMMA_IN_OBJECT = 7
    NO_COMMA_IN_ARRAY = 8
    NO_DIGIT = 9
    ESCAPE = 10
    HEX_DIGIT = 11
    SURROGATE = 12
    CONTROL_BYTE = 13
    NOT_UTF8 = 14
    DEPTH = 15
    BYTES_LEFT = 16
    WRONG_VALUE = 17
    FIELD_TWICE = 18
    UNKNOWN_FIELD = 19

@final
class PayloadReader:
    def __init__(
        self,
        steps: NDArray[np.int64],
        nodes: NDArray[np.int64],
        names: list[bytes],
        is_strict: bool,
    ) -> None: ...
    def read(
        self, data: NDArray[np.uint8], starts: NDArray[np.int64], ends: NDArray[np.int64]
    ) -> tuple[
        list[tuple[int, NDArray[np.uint8] | None, NDArray[np.int32] | None, NDArray[np.uint8] | None]],
        NDArray[np.int64],
    ]: ...
