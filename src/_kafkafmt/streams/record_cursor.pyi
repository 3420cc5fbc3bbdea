from typing import final

from typing_extensions import Buffer

from _kafkafmt.batches.scan import BatchRun
from _kafkafmt.records.decode import LocatedRecords

RECORD_ROW_BYTES: int
INDEX_ROW_BYTES: int

def locate_chunk(
    run: BatchRun,
    number: int,
    chunk: Buffer,
    at: int,
    *,
    origin: int,
    is_whole: bool,
    done: int,
    most: int,
) -> tuple[LocatedRecords | None, int, int]: ...
def locate_plain(
    run: BatchRun, number: int, *, at: int, done: int, most: int, verify: bool
) -> tuple[LocatedRecords | None, int, int, int]: ...

@final
class RecordCursor:
    @property
    def located(self) -> LocatedRecords: ...
    @property
    def next(self) -> int: ...
    @property
    def count(self) -> int: ...
    @property
    def latest(self) -> int: ...
    @property
    def timestamp(self) -> int: ...
    @property
    def next_offset(self) -> int: ...
    def __init__(self, located: LocatedRecords, first: int = 0) -> None: ...
    def take(self, limit: int, is_inclusive: bool, most: int) -> int: ...
