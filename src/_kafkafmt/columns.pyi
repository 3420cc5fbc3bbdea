from collections.abc import Collection, Sequence
from typing import Any, final

from typing_extensions import Buffer

from _kafkafmt.scan import BatchRun

@final
class GrowingArray:
    def __init__(self, item_size: int) -> None: ...

@final
class BinaryColumnBuilder:
    def __init__(self, is_value: bool, as_views: bool) -> None: ...

@final
class HeadersColumnBuilder:
    def __init__(self, *args: object, **kwargs: object) -> None: ...

@final
class ColumnBuilder:
    @property
    def count(self) -> int: ...
    @property
    def size_in_bytes(self) -> int: ...
    def __init__(self, columns: Collection[str], *, views: bool = False) -> None: ...
    def add(
        self,
        run: BatchRun,
        first: int,
        stop: int,
        payloads: Sequence[Buffer | None] | None,
        *,
        verify: bool,
        expected: float = 1.0,
    ) -> None: ...
    def take(self) -> dict[str, Any]: ...
