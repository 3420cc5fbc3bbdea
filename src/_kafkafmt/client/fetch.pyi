from typing import final

import numpy as np
from numpy.typing import ArrayLike, NDArray
from typing_extensions import Buffer

from _kafkafmt.client.messages import RequestHeader

OLDEST_VERSION: int
NEWEST_VERSION: int
TOPIC_IDS_VERSION: int
FETCH_DTYPE: np.dtype[np.void]
FORGOTTEN_DTYPE: np.dtype[np.void]
FETCHED_DTYPE: np.dtype[np.void]
ABORTED_DTYPE: np.dtype[np.void]

@final
class FetchSession:
    @property
    def session_id(self) -> int: ...
    @property
    def epoch(self) -> int: ...
    def __init__(self, session_id: int, epoch: int) -> None: ...

@final
class FetchEncoder:
    def __init__(
        self, max_wait_ms: int, min_bytes: int, max_bytes: int, isolation_level: int, rack_id: bytes
    ) -> None: ...
    def encode(
        self,
        header: RequestHeader,
        session: FetchSession,
        topics: list[bytes],
        partitions: ArrayLike | list[tuple[int, int, int, int, int, int]],
        forgotten: ArrayLike | list[tuple[int, int]],
    ) -> bytes: ...

@final
class FetchResponse:
    @property
    def correlation_id(self) -> int: ...
    @property
    def throttle_time_ms(self) -> int: ...
    @property
    def session_id(self) -> int: ...
    @property
    def error_code(self) -> int: ...
    @property
    def topics(self) -> list[bytes]: ...
    @property
    def partitions(self) -> NDArray[np.void]: ...
    @property
    def aborted(self) -> NDArray[np.void]: ...
    @property
    def endpoints(self) -> list[tuple[int, bytes, int, bytes | None]]: ...

def decode_fetch_response(response: Buffer, version: int) -> FetchResponse: ...
