"""The logs that are restored, up to where the restore ends them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import structlog

from kafkafmt._util.ini import IniError
from kafkafmt.errors import KafkaFormatError
from kafkafmt.log.cut import LogCut
from kafkafmt.log.cutting import cut_before_time
from kafkafmt.log.partition_log import PartitionLog
from kafkafmt.mirror.sources.directory import DirectorySource
from kafkafmt.restore.errors import RestoreError

if TYPE_CHECKING:
    from kafkafmt.log.reader import LogReader
    from kafkafmt.mirror.options import MirrorOptions
    from kafkafmt.storage import StoragePath

_log = structlog.get_logger()


class RestoreSource(DirectorySource):
    """The selected topics of a log directory.

    Records of transactions that are open at the end are left out, and those after them are not: no producer will end
    these transactions.
    """

    def __init__(
        self,
        path: StoragePath,
        options: MirrorOptions,
        *,
        name: str,
        matches: Callable[[str], bool],
    ) -> None:
        self._matches = matches
        try:
            super().__init__(path, options)
        except (IniError, KafkaFormatError) as error:
            raise RestoreError(str(error)) from None
        self.name = name

    def _is_selected(self, topic: str) -> bool:
        return self._matches(topic)

    def _no_topics_message(self, path: StoragePath) -> str:
        return f"{path}: expected a topic that is selected, found none"

    def _end(self, reader: LogReader) -> None:
        cut, end_ms = None, self._options.times.end_ms
        if end_ms is not None:
            skips_damage = self._options.on_corrupt == "skip"
            try:
                cut = cut_before_time(PartitionLog(reader.folder), end_ms, skips_damage=skips_damage)
            except KafkaFormatError as error:  # a dry run stops no partition, and so reports nothing later
                _log.warning(
                    "damage prevents the search for the end",
                    partition=str(reader.topic_partition),
                    error=str(error),
                )
                raise
        reader.end_at(LogCut(reader.log_end, dict(reader.open_transactions)) if cut is None else cut)
