from collections.abc import Iterable, Sequence
from typing import final

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Buffer

from _kafkafmt.decode import LocatedRecords

def encode_records(
    located: LocatedRecords, first: int, stop: int, base_offset: int, base_timestamp: int, dense: bool = False
) -> bytearray: ...
def encode_messages(
    located: LocatedRecords, first: int, stop: int, magic: int, timestamp_type: int, base_offset: int = 0
) -> bytearray: ...
def padding_header(remaining: int) -> bytes: ...
def seal_batch(batch: bytearray, header: NDArray[np.void]) -> None: ...
def wrap_messages(payload: Buffer, header: NDArray[np.void]) -> bytearray: ...

@final
class RecordEncoder:
    @property
    def magic(self) -> int: ...
    @property
    def base_offset(self) -> int: ...
    @property
    def last_offset(self) -> int: ...
    @property
    def base_timestamp(self) -> int: ...
    @property
    def max_timestamp(self) -> int: ...
    @property
    def count(self) -> int: ...
    @property
    def size_in_bytes(self) -> int: ...
    def __init__(
        self,
        magic: int,
        base_offset: int,
        *,
        base_timestamp: int | None = None,
        log_append_time: int | None = None,
        message_base: int = 0,
    ) -> None: ...
    def __len__(self) -> int: ...
    def size_of(
        self,
        timestamp: int,
        key_size: int,
        value_size: int,
        headers: Sequence[tuple[str | bytes, Buffer | None]] = (),
    ) -> int: ...
    def append(
        self,
        offset: int,
        timestamp: int,
        key: Buffer | None,
        value: Buffer | None,
        headers: Iterable[tuple[str | bytes, Buffer | None]] = (),
    ) -> None: ...
    def take(self) -> bytearray: ...
