"""What readers of many logs share: their buffer, and which of them keep their segment open."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from kafkafmt.log.open_segment import READ_BYTES

if TYPE_CHECKING:
    from kafkafmt.log.reader import LogReader
    from kafkafmt.types import TopicPartition


class OpenReaders:
    """Limit how many of the readers of many logs keep their segment open. `most`: the limit."""

    def __init__(self, most: int) -> None:
        self._most = max(most, 1)
        self._open: OrderedDict[TopicPartition, LogReader] = OrderedDict()  # the last one read is last

    def keep(self, reader: LogReader) -> None:
        """Note that this reader is read now. Beyond the limit, those that were read least recently are rested."""
        self._open[reader.topic_partition] = reader
        self._open.move_to_end(reader.topic_partition)
        while len(self._open) > self._most:
            _, oldest = self._open.popitem(last=False)
            oldest.rest()

    def forget(self, topic_partition: TopicPartition) -> None:
        """Forget the reader of a partition, which is gone."""
        self._open.pop(topic_partition, None)


def read_memory() -> bytearray:
    """Allocate the buffer that readers share."""
    return bytearray(READ_BYTES)
