import numpy as np
from numpy.typing import NDArray
from typing_extensions import Buffer

from _kafkafmt.records.decode import LocatedRecords

__pyx_capi__: dict[str, object]

def encode_records(
    located: LocatedRecords, first: int, stop: int, base_offset: int, base_timestamp: int
) -> bytearray: ...
def encode_messages(
    located: LocatedRecords, first: int, stop: int, magic: int, timestamp_type: int, base_offset: int = 0
) -> bytearray: ...
def padding_header(remaining: int) -> bytes: ...
def seal_batch(batch: bytearray, header: NDArray[np.void]) -> None: ...
def wrap_messages(payload: Buffer, header: NDArray[np.void]) -> bytes: ...
