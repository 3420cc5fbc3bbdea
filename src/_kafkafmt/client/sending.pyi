from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any, Generic, TypeVar, final

import numpy as np
from numpy.typing import NDArray
from typing_extensions import disjoint_base

from _kafkafmt.client.appending import RecordAppender
from _kafkafmt.client.partitions import KnownTopics
from _kafkafmt.client.record_place import RecordPlace

@final
class ManyRecords:
    @property
    def count(self) -> int: ...
    def __new__(
        cls,
        values: Iterable[Any],
        keys: Iterable[Any] | None,
        headers: Iterable[Any] | None,
        timestamps_ms: Iterable[Any] | None,
    ) -> ManyRecords: ...
    def __len__(self) -> int: ...
    def next_record(self) -> tuple[Any, Any, Any, Any]: ...
    def add(self, place: RecordPlace) -> None: ...
    def spans_of_batches(self) -> list[tuple[Any, int, int]]: ...
    def order(self) -> NDArray[np.int64] | None: ...

_Sent = TypeVar("_Sent")

@disjoint_base
class RecordSender(Generic[_Sent]):
    @classmethod
    def __class_getitem__(cls, _: object) -> type[RecordSender[Any]]: ...
    _closed: bool
    def _begin_sending_natively(
        self,
        appender: RecordAppender[Any],
        topics: KnownTopics,
        wakeup: Callable[[], object],
        max_request_size: int,
    ) -> None: ...
    def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        headers: list[tuple[str, bytes]] | None = None,
        partition: int | None = None,
        timestamp_ms: int | datetime | None = None,
    ) -> _Sent: ...
    def _send_next(self, topic: str, records: ManyRecords, partition: int | None) -> None: ...
