from collections.abc import Collection, Sequence
from typing import Any, final

from typing_extensions import Buffer

from _kafkafmt.scan import BatchRun

@final
class Block:
    def __init__(self, size: int) -> None: ...

@final
class SpareBlocks:
    def __init__(self, *args: object, **kwargs: object) -> None: ...

@final
class Loan: ...

@final
class GrowingArray:
    def __init__(self, spare: SpareBlocks, item_size: int, slack: int = 0) -> None: ...

@final
class EndsBuilder:
    def __init__(self, spare: SpareBlocks, wide: bool) -> None: ...

@final
class BinaryColumnBuilder:
    def __init__(self, spare: SpareBlocks, as_views: bool, wide: bool) -> None: ...

@final
class HeadersColumnBuilder:
    def __init__(self, spare: SpareBlocks, wide: bool) -> None: ...

@final
class ColumnBuilder:
    @property
    def count(self) -> int: ...
    @property
    def size_in_bytes(self) -> int: ...
    def __init__(self, columns: Collection[str], *, views: bool = False, wide: bool = False) -> None: ...
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
