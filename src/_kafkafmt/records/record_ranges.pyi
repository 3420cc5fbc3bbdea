from collections.abc import Sequence
from typing import final

from typing_extensions import Buffer

from _kafkafmt.batches.scan import BatchRun

@final
class RecordRanges:
    def __init__(
        self,
        run: BatchRun,
        first: int,
        stop: int,
        payloads: Sequence[Buffer | None] | None,
        *,
        verify: bool = False,
        strict: bool = False,
    ) -> None: ...
