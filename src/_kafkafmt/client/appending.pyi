from collections.abc import Callable, Collection
from datetime import datetime
from typing import Any, Generic, Literal, TypeVar, overload

from typing_extensions import Buffer, disjoint_base

__pyx_capi__: dict[str, object]

@disjoint_base
class BatchState:
    topic_partition: Any
    builder: Any
    reservation: Any
    producer_state: Any
    whole: Any
    order: Any
    created_ms: float
    last_attempt_ms: float
    compression_ratio: float
    max_record_size: int
    attempts: int
    may_have_arrived: bool
    was_half_full: bool
    is_closing: bool
    is_unobserved: bool
    _is_finished: bool
    _was_numbered: bool
    _builder: Any
    _data: Any
    _size: int
    _count: int
    @property
    def outcome(self) -> Any: ...
    @property
    def _parts(self) -> Any: ...
    def _end(self, outcome: object) -> list[tuple[int, Callable[[], None]]] | None: ...
    def _replace(self, parts: list[Any]) -> list[tuple[int, Callable[[], None]]]: ...
    def _listen(self, listener: tuple[int, Callable[[], None]]) -> bool: ...

_Future = TypeVar("_Future")

@disjoint_base
class RecordAppender(Generic[_Future]):
    @classmethod
    def __class_getitem__(cls, _: object) -> type[RecordAppender[Any]]: ...
    def _begin_appending(self, batches: dict[Any, Any], place_class: type[_Future]) -> None: ...
    @overload
    def append(
        self,
        topic_partition: tuple[str, int],
        timestamp: int | datetime,
        key: Buffer | None,
        value: Buffer | None,
        headers: Collection[tuple[str | bytes, Buffer | None]] = (),
        *,
        now_ms: float,
        max_block_ms: float | None = None,
        abort_on_new_batch: Literal[False] = False,
        transaction: Any = None,
    ) -> tuple[_Future, bool]: ...
    @overload
    def append(
        self,
        topic_partition: tuple[str, int],
        timestamp: int | datetime,
        key: Buffer | None,
        value: Buffer | None,
        headers: Collection[tuple[str | bytes, Buffer | None]] = (),
        *,
        now_ms: float,
        max_block_ms: float | None = None,
        abort_on_new_batch: bool,
        transaction: Any = None,
    ) -> tuple[_Future, bool] | None: ...
