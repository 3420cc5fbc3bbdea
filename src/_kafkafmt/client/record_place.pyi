__pyx_capi__: dict[str, object]

from typing import Any

from typing_extensions import Buffer, disjoint_base

@disjoint_base
class RecordPlace:
    @property
    def batch(self) -> Any: ...
    @property
    def index(self) -> int: ...
    @property
    def timestamp(self) -> int: ...
    @property
    def key_size(self) -> int: ...
    @property
    def value_size(self) -> int: ...
    def __init__(
        self, batch: Any, index: int, timestamp: int, key: Buffer | None, value: Buffer | None
    ) -> None: ...
