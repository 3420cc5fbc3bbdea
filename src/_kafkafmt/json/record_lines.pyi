from enum import IntEnum
from typing import final

import numpy as np
from numpy.typing import NDArray

from _kafkafmt.json.topic_records import TopicRecords
from _kafkafmt.records.decode import LocatedRecords

class TransactionState(IntEnum):
    NO_TRANSACTION = 0
    COMMITTED = 1
    ABORTED = 2
    OPEN = 3

@final
class RecordLines:
    def __init__(self, source: bytes, topic_records: TopicRecords | None = None) -> None: ...
    def write(
        self,
        located: LocatedRecords,
        first: int = 0,
        *,
        first_offset: int | None = None,
        end_offset: int | None = None,
        most: int | None = None,
        transactions: NDArray[np.uint8] | None = None,
    ) -> tuple[NDArray[np.uint8], int, int]: ...
