"""What commands report while they read internal topics: damage, and records that they cannot decode."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kafkafmt.cli.output import flush_output, in_words, notify

if TYPE_CHECKING:
    from kafkafmt.log.gaps import SourceDamage
    from kafkafmt.log.internal_topics.offsets import UnknownRecord

_MOST_UNKNOWN = 5


class DamageReport:
    """Reports each damaged range, once, on standard error. status: the exit status, 1 if there was damage."""

    def __init__(self) -> None:
        self._reported: set[SourceDamage] = set()

    @property
    def status(self) -> int:
        return 1 if self._reported else 0

    def add(self, damage: SourceDamage) -> None:
        if damage not in self._reported:
            self._reported.add(damage)
            flush_output()
            where = f"{damage.topic_partition} at offset {damage.offset}"
            notify(f"damage: {where}, skipped: {damage.message}")


def notify_unknown(records: Sequence[UnknownRecord]) -> None:
    """Report the records that could not be decoded: the first ones, and how many there are."""
    for record in records[:_MOST_UNKNOWN]:
        notify(f"not decoded: {record.topic_partition} at offset {record.offset}: {record.reason}")
    if len(records) > _MOST_UNKNOWN:
        notify(f"not decoded: {in_words(len(records), 'record')} in all")
