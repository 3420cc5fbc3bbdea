from collections.abc import Collection, Sequence
from typing import Any, final

from typing_extensions import Buffer

from _kafkafmt.batches.scan import BatchRun

@final
class EndsBuilder:
    def __init__(self, large_offsets: bool) -> None: ...

@final
class BinaryColumnBuilder:
    def __init__(self, as_views: bool, large_offsets: bool) -> None: ...

@final
class HeadersColumnBuilder:
    def __init__(self, large_offsets: bool) -> None: ...

@final
class ColumnBuilder:
    @property
    def count(self) -> int: ...
    @property
    def size_in_bytes(self) -> int: ...
    def __init__(
        self,
        columns: Collection[str],
        *,
        views: bool = False,
        large_offsets: bool = False,
        source_bytes: int = 0,
        chunk_bytes: int = 0,
    ) -> None: ...
    def add(
        self,
        run: BatchRun,
        first: int,
        stop: int,
        payloads: Sequence[Buffer | None] | None,
        *,
        verify: bool,
    ) -> None: ...
    def take(self) -> dict[str, Any]: ...
