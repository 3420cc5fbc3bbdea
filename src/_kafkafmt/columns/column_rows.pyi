from collections.abc import Sequence
from typing import Final, final

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Buffer

__pyx_capi__: dict[str, object]

COLUMN_NAMES: Final[tuple[str, ...]]

@final
class ColumnEntries:
    @property
    def count(self) -> int: ...
    def __init__(
        self,
        count: int,
        entry_size: int,
        entries: Buffer,
        *,
        first: int = 0,
        data: Sequence[Buffer] = (),
        limit: int = 0,
        valid: Buffer | None = None,
        bitmap: bool = False,
    ) -> None: ...
    def __len__(self) -> int: ...

@final
class ColumnRows:
    @property
    def count(self) -> int: ...
    def __init__(
        self,
        timestamps: NDArray[np.int64],
        keys: ColumnEntries | None,
        values: ColumnEntries | None,
        headers: ColumnEntries | None = None,
        header_keys: ColumnEntries | None = None,
        header_values: ColumnEntries | None = None,
        offsets: NDArray[np.int64] | None = None,
        origin: int = 0,
    ) -> None: ...
    def __len__(self) -> int: ...
