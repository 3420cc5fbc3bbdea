from typing import final

import numpy as np
from numpy.typing import ArrayLike, NDArray
from typing_extensions import Buffer

from _kafkafmt.client.messages import RequestHeader

OLDEST_VERSION: int
NEWEST_VERSION: int
TOPIC_IDS_VERSION: int
PRODUCE_DTYPE: np.dtype[np.void]
PRODUCED_DTYPE: np.dtype[np.void]
RECORD_ERROR_DTYPE: np.dtype[np.void]

@final
class ProduceEncoder:
    def __init__(self, transactional_id: bytes | None, acks: int, timeout_ms: int) -> None: ...
    def encode(
        self,
        header: RequestHeader,
        topics: list[bytes],
        partitions: ArrayLike | list[tuple[int, int, int]] | bytes,
    ) -> list[bytes]: ...

@final
class ProduceResponse:
    @property
    def correlation_id(self) -> int: ...
    @property
    def throttle_time_ms(self) -> int: ...
    @property
    def tags_position(self) -> int: ...
    @property
    def topics(self) -> list[bytes]: ...
    @property
    def partitions(self) -> NDArray[np.void]: ...
    @property
    def record_errors(self) -> NDArray[np.void]: ...
    @property
    def endpoints(self) -> list[tuple[int, bytes, int, bytes | None]]: ...

def decode_produce_response(response: Buffer, version: int) -> ProduceResponse: ...
def produced_partitions(
    response: Buffer, version: int
) -> tuple[
    int,
    list[tuple[bytes, int, int, int, int, int, tuple[tuple[int, str | None], ...], str | None, int, int]],
]: ...
