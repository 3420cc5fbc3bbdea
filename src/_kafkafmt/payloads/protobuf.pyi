from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

class ValueKind(IntEnum):
    INT32 = 0
    SINT32 = 1
    FIXED32 = 2
    INT64 = 3
    SINT64 = 4
    FIXED64 = 5
    BOOL = 6
    BYTES = 7
    STRING = 8
    MESSAGE = 9
    GROUP = 10

class FieldRule(IntEnum):
    REPEATED = 1
    REQUIRED = 2
    CLOSED = 4

class ScanStatus(IntEnum):
    SCANNED = 0
    ENDS_EARLY = 1
    VARINT_TOO_LONG = 2
    FIELD_NUMBER = 3
    WIRE_TYPE = 4
    LENGTH = 5
    GROUP_END = 6
    GROUP_DEPTH = 7
    NOT_UTF8 = 8
    REQUIRED_MISSING = 9
    NO_MEMORY = 10

@final
class ItemArray: ...

@final
class FieldColumn:
    @property
    def present(self) -> NDArray[np.uint8] | None: ...
    @property
    def values(self) -> NDArray[Any]: ...
    @property
    def offsets(self) -> NDArray[np.int64] | None: ...
    @property
    def owners(self) -> NDArray[np.int64] | None: ...

@final
class MessageScanner:
    @property
    def message_bytes(self) -> int: ...
    def __init__(self, fields: Iterable[tuple[int, int, int, int, Sequence[int]]], oneofs: int) -> None: ...
    def scan(
        self,
        data: NDArray[np.uint8],
        starts: NDArray[np.int64],
        ends: NDArray[np.int64],
        owners: NDArray[np.int64],
        count: int,
    ) -> tuple[list[FieldColumn], NDArray[np.int64]]: ...

def join_ranges(
    data: NDArray[np.uint8], ranges: NDArray[np.int64]
) -> tuple[NDArray[np.uint8], NDArray[np.int32]]: ...
