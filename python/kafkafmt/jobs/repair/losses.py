"""Describe the contents of a damaged range: the offsets that are missing, and the records and keys in it."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from _kafkafmt.batches.scan import scan
from kafkafmt.errors import KafkaFormatError
from kafkafmt.jobs.files import is_expected_tail
from kafkafmt.jobs.repair.report import LostRange
from kafkafmt.records.batch import RecordBatch
from kafkafmt.records.runs import first_offsets
from kafkafmt.types import Codec

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kafkafmt.jobs.repair.scan import ScannedFile
    from kafkafmt.log.damage import Damage

# Of a longer range, the rest is not searched for headers.
_MOST_BYTES = 1024 * 1024
_MOST_KEYS = 10
# A header is believed if its offsets are at most this far below those that are kept.
_NEAR_OFFSETS = 100_000
# No batch has more offsets: the last offset delta is an int32.
_MOST_OFFSETS = 2**31


class Coverage:
    """The offsets that are kept, as ranges that do not overlap."""

    def __init__(self, parts: Iterable[NDArray[np.void]]) -> None:
        chains = [*parts]
        firsts = np.concatenate([np.empty(0, "i8"), *(part["first_offset"] for part in chains)])
        lasts = np.concatenate([np.empty(0, "i8"), *(part["last_offset"] for part in chains)])
        order = firsts.argsort(kind="stable")
        self._firsts, self._lasts = firsts[order], lasts[order]

    def has(self, offset: int) -> bool:
        """Whether an offset is kept."""
        number = int(self._firsts.searchsorted(offset, "right")) - 1
        return number >= 0 and bool(self._lasts[number] >= offset)

    def surrounds(self, offset: int) -> bool:
        """Whether an offset is not above, nor far below, those that are kept."""
        if not len(self._firsts):
            return False
        return bool(self._firsts[0] - _NEAR_OFFSETS <= offset <= self._lasts[-1])

    def is_free(self, first: int, last: int) -> bool:
        """Whether no offset of a range is kept."""
        number = int(self._firsts.searchsorted(last, "right")) - 1
        return number < 0 or bool(self._lasts[number] < first)

    def add(self, first: int, last: int) -> None:
        """Add a range that is free."""
        number = int(self._firsts.searchsorted(first))
        self._firsts = np.insert(self._firsts, number, first)
        self._lasts = np.insert(self._lasts, number, last)

    def missing(self, first: int, last: int) -> tuple[int, int] | None:
        """Return the lowest and the highest offset of a range that are not kept; None if all are."""
        low, high = first, last
        while low <= last and self.has(low):
            low = int(self._lasts[self._firsts.searchsorted(low, "right") - 1]) + 1
        while high >= low and self.has(high):
            high = int(self._firsts[self._firsts.searchsorted(high, "right") - 1]) - 1
        return (low, high) if low <= high else None


def lost_range(
    file: ScannedFile, damage: Damage, coverage: Coverage, first: int | None, stop: int | None
) -> LostRange:
    """Return what a damaged range loses.

    first: the offset after what is kept before the range; None if that is unknown. stop: the lowest offset that is kept
    after it; None if the log ends with the range.
    """
    records, keys, last_known = _readable(file, damage, first or 0, stop)
    missing = None
    if first is not None and stop is not None and first < stop:
        missing = coverage.missing(first, stop - 1)
    elif first is not None and stop is None and last_known is not None:
        missing = first, last_known
    is_lost = missing is not None or first is None
    if stop is None:
        is_lost = damage.kind != "zero tail" and not is_expected_tail(damage, is_active=file.is_active)
    elif missing is None:
        # Its neighbours have no gap between them. It may come from another place.
        missing = _missing_in_header(damage, coverage)
        is_lost = is_lost or missing is not None
    return LostRange(
        kind=damage.kind,
        path=str(file.path),
        position=damage.position,
        end_position=damage.end_position,
        first_offset=None if missing is None else missing[0],
        last_offset=None if missing is None else missing[1],
        is_lost=is_lost,
        records=records,
        keys=keys,
        message=damage.message,
    )


def _missing_in_header(damage: Damage, coverage: Coverage) -> tuple[int, int] | None:
    """Return which offsets in the header of the first damaged batch are not kept, if the log can have them."""
    base, last = damage.base_offset, damage.last_offset
    if base is None or last is None or not coverage.surrounds(base) or not coverage.surrounds(last):
        return None
    return coverage.missing(base, last)


def _readable(
    file: ScannedFile, damage: Damage, first: int, stop: int | None
) -> tuple[int | None, list[str], int | None]:
    """Return the number of records, the first keys, and the last offset, from headers whose offsets are possible."""
    with file.open() as opened:
        size = min(damage.end_position - damage.position, _MOST_BYTES)
        data = bytes(opened.read_at(damage.position, size))
        run, _, _, _, _ = scan(data, damage.position)
        rows = run.index
        firsts, lasts = first_offsets(rows), rows["last_offset"]
        end = first + _MOST_OFFSETS if stop is None else stop
        possible = (firsts >= first) & (lasts < end) & (lasts >= firsts) & (rows["count"] >= 0)
        possible &= rows["count"] <= lasts - firsts + 1
        if not possible.any():
            return None, [], None
        keys: list[str] = []
        for number in possible.nonzero()[0].tolist():
            if len(keys) < _MOST_KEYS and rows["codec"][number] == Codec.NONE:
                _add_keys(RecordBatch(run, number, opened.max_decompressed_bytes), keys)
        return int(rows["count"][possible].sum()), keys, int(lasts[possible].max())


def _add_keys(batch: RecordBatch, keys: list[str]) -> None:
    """Add keys of a damaged batch, up to the first record that cannot be read."""
    try:
        for record in batch.records(verify=False):
            if record.key is not None and len(keys) < _MOST_KEYS:
                keys.append(_text(bytes(record.key)))
    except KafkaFormatError:
        return


def _text(key: bytes) -> str:
    try:
        return key.decode()
    except UnicodeDecodeError:
        return base64.b64encode(key).decode()
