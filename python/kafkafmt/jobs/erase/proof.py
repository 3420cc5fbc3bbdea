"""Prove the result of an erasure: read source and target again, and compare them.

The proof shares no code with the erasure but the reading of records. It finds keys by a search in sorted arrays, not by
the hash table. It reads every batch of the target, checks its CRC and decompresses it, and shows that

- no record has one of the keys (or is selected by the function), or each such record has the new value;
- the records that the report names are those, and no others;
- all other records of the source are there, in their order, with offset, timestamp, key, value and headers;
- all control batches are there, unchanged.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from kafkafmt.columns.read import BinaryColumn, HeadersColumn, numpy_batches
from kafkafmt.errors import KafkaFormatError
from kafkafmt.jobs.erase.options import EraseOptions, is_selected
from kafkafmt.jobs.files import Progress, error_in_words
from kafkafmt.jobs.rewrite import SegmentTask, intact_ranges, read_sidecar
from kafkafmt.log import Segment, SegmentRecords

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from _kafkafmt.batches.scan import BatchRun
    from kafkafmt.storage import StoragePath

_COLUMNS = ("offset", "timestamp", "key", "value", "headers")
# A failed proof names this many offsets.
_SHOWN = 5


class _Disproved(Exception):
    """The target is not what it should be."""


@dataclass
class SegmentProof:
    """The proof for one segment. error: why it failed; None if it succeeded. targets: the names of its segments."""

    path: str
    target: str
    targets: tuple[str, ...] = ()
    records: int = 0
    error: str | None = None


def prove_segment(task: SegmentTask, options: EraseOptions, progress: Progress | None = None) -> SegmentProof:
    """Prove the result for one segment. A failure is reported in the result, not raised.

    progress: called with the number of source bytes read since its last call.
    """
    proof = SegmentProof(str(task.segment), str(task.target))
    try:
        sidecar = read_sidecar(task.sidecar)
        if sidecar is None:
            raise _Disproved(f"{task.sidecar}: expected the file that describes {task.target}, found none")
        proof.targets = tuple(sorted(sidecar["targets"]))
        _Proof(task, options, sidecar, proof).run(progress)
    except (KafkaFormatError, OSError, ValueError, _Disproved) as error:
        proof.error = error_in_words(error, proof.target)
    return proof


class _Proof:
    def __init__(
        self, task: SegmentTask, options: EraseOptions, sidecar: dict[str, Any], proof: SegmentProof
    ) -> None:
        self._task = task
        self._replacement = options.replacement
        self._keys = None if options.keys is None else SortedKeys(options.keys)
        self._predicate = None if options.where is None else options.predicate()
        self._erased = _Ranges(sidecar["erased_offsets"])
        self._sidecar = sidecar
        self._proof = proof

    def run(self, progress: Progress | None) -> None:
        before, after = self._source(progress), self._target()
        if before.control.digest() != after.control.digest():
            raise _Disproved(
                f"{self._task.target}: the control batches are not those of {self._task.segment}"
            )
        if before.count != after.count:
            raise _Disproved(
                f"{self._task.target}: expected {before.count} records to be kept, found {after.count}"
            )
        for name, digest in before.digests.items():
            if digest.digest() != after.digests[name].digest():
                raise _Disproved(
                    f"{self._task.target}: the {name} of a record is not that in {self._task.segment}"
                )
        self._proof.records = after.count

    def _source(self, progress: Progress | None) -> _Content:
        content, segment, found = _Content(), self._task.segment, 0
        for start, end in intact_ranges(self._sidecar["damage"]):
            for columns in _read(segment.path, start, end, content, progress, is_active=segment.is_active):
                erased = self._erased.contain(columns["offset"])
                self._ensure_matching(columns, erased, "the report names records of other keys:")
                found += int(erased.sum())
                content.add(columns, self._kept(erased), ~erased)
        if found != self._sidecar["records_erased"]:
            expected = self._sidecar["records_erased"]
            raise _Disproved(f"{segment}: expected {expected} erased records, found {found} at their offsets")
        return content

    def _target(self) -> _Content:
        content = _Content()
        for name in self._proof.targets:
            path = self._task.target_folder / name
            for columns in _read(path, 0, None, content, None, is_active=False):
                if self._replacement is None:
                    erased = np.zeros(len(columns["offset"]), np.bool_)
                    self._ensure_matching(columns, erased, "an erased key is left:")
                else:
                    erased = self._erased.contain(columns["offset"])
                    self._ensure_matching(columns, erased, "the report names records of other keys:")
                    self._ensure_replaced(columns, erased, self._replacement.value)
                content.add(columns, self._kept(erased), ~erased)
            if self._predicate is not None and self._replacement is None:
                self._ensure_unselected(path)
        return content

    def _kept(self, erased: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return the mask of records that remain: those whose value was replaced do."""
        return ~erased if self._replacement is None else np.ones(len(erased), np.bool_)

    def _ensure_matching(self, columns: dict[str, Any], expected: NDArray[np.bool_], message: str) -> None:
        """Raise _Disproved unless the records with one of the keys are those of a mask."""
        if self._keys is None:
            return
        wrong = self._keys.among(columns["key"]) != expected
        if wrong.any():
            raise self._disproved(message, columns["offset"][wrong])

    def _ensure_replaced(
        self, columns: dict[str, Any], erased: NDArray[np.bool_], value: bytes | None
    ) -> None:
        """Raise _Disproved unless the values of the records of a mask are the new one."""
        values = columns["value"]
        sizes = _sizes(values)
        wrong = erased & (sizes != (-1 if value is None else len(value)))
        if value and not wrong.any():
            starts = values.offsets[:-1][erased]
            same = np.frombuffer(value, np.uint8)
            for place, byte in enumerate(same.tolist()):
                wrong[erased] |= values.data[starts + place] != byte
        if wrong.any():
            raise self._disproved("a value is not replaced:", columns["offset"][wrong])

    def _ensure_unselected(self, path: StoragePath) -> None:
        assert self._predicate is not None
        where = self._task.segment.topic_partition
        with Segment(path).open() as records:
            for record in records.records():
                if is_selected(self._predicate, record, where):
                    raise self._disproved("a record that is to be erased is left:", np.array([record.offset]))

    def _disproved(self, message: str, offsets: NDArray[np.int64]) -> _Disproved:
        shown = ", ".join(map(str, offsets[:_SHOWN].tolist()))
        more = f" and {len(offsets) - _SHOWN} more" if len(offsets) > _SHOWN else ""
        return _Disproved(f"{self._task.target}: {message} offset {shown}{more}")


class _Content:
    """Digests of the records of a segment. They do not depend on how its records are divided into chunks."""

    def __init__(self) -> None:
        self.count = 0
        self.control = hashlib.blake2b()
        self.digests: defaultdict[str, hashlib.blake2b] = defaultdict(hashlib.blake2b)

    def add(self, columns: dict[str, Any], kept: NDArray[np.bool_], same_value: NDArray[np.bool_]) -> None:
        """Add records of a chunk. kept: a mask of the records. same_value: a mask of those whose values count."""
        self.count += int(kept.sum())
        for name in ("offset", "timestamp"):
            self.digests[name].update(columns[name][kept].tobytes())
        self._add_binary("key", columns["key"], kept)
        self._add_binary("value", columns["value"], same_value)
        headers: HeadersColumn = columns["headers"]
        counts = np.diff(headers.offsets)
        of_kept = np.repeat(kept, counts)
        self.digests["number of headers"].update(counts[kept].tobytes())
        self._add_binary("header key", headers.keys, of_kept)
        self._add_binary("header value", headers.values, of_kept)

    def _add_binary(self, name: str, column: BinaryColumn, kept: NDArray[np.bool_]) -> None:
        sizes = _sizes(column)
        data = column.data[column.offsets[0] : column.offsets[-1]]
        if not kept.all():
            data = data[np.repeat(kept, np.diff(column.offsets))]
        self.digests[f"size of {name}"].update(sizes[kept].tobytes())
        self.digests[name].update(np.ascontiguousarray(data).data)

    def add_control(self, rows: NDArray[np.void]) -> None:
        """Add the headers of control batches."""
        control = rows[rows["is_control"]]
        for name in ("base_offset", "crc"):
            self.control.update(control[name].tobytes())


class _Ranges:
    """Ranges of offsets: pairs of the first and the last one."""

    def __init__(self, ranges: Iterable[list[int]]) -> None:
        pairs = np.array(sorted(ranges), np.int64).reshape(-1, 2)
        self._firsts, self._lasts = pairs[:, 0], pairs[:, 1]

    def contain(self, offsets: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return for each offset whether it is in a range."""
        if not len(self._firsts):
            return np.zeros(len(offsets), np.bool_)
        place = self._firsts.searchsorted(offsets, "right") - 1
        found: NDArray[np.bool_] = (place >= 0) & (offsets <= self._lasts[np.maximum(place, 0)])
        return found


class SortedKeys:
    """Keys in a sorted array for each size, and which of many records have one of them."""

    def __init__(self, keys: Iterable[bytes]) -> None:
        of_size: dict[int, set[bytes]] = defaultdict(set)
        for key in keys:
            of_size[len(key)].add(key)
        self._has_empty = 0 in of_size
        self._tables = {
            size: np.frombuffer(b"".join(sorted(found)), np.dtype((np.void, size)))
            for size, found in of_size.items()
            if size
        }

    def among(self, column: BinaryColumn) -> NDArray[np.bool_]:
        """Return for each key of a column whether it is one of these. Null never is."""
        sizes, found = _sizes(column), np.zeros(len(column), np.bool_)
        if self._has_empty:
            found[sizes == 0] = True
        for size in np.unique(sizes).tolist():
            table = self._tables.get(size)
            if table is None:
                continue
            rows = (sizes == size).nonzero()[0]
            cells = column.data[column.offsets[rows][:, None] + np.arange(size)]
            keys = cells.view(table.dtype)[:, 0]
            place = np.minimum(table.searchsorted(keys), len(table) - 1)
            found[rows] = table[place] == keys
        return found


def _sizes(column: BinaryColumn) -> NDArray[np.int64]:
    """Return the size of each string; -1 for null."""
    sizes = np.diff(column.offsets)
    return sizes if column.valid is None else np.where(column.valid, sizes, -1)


def _read(
    path: StoragePath,
    start: int,
    end: int | None,
    content: _Content,
    progress: Progress | None,
    *,
    is_active: bool,
) -> Iterator[dict[str, Any]]:
    """Yield the data records of a part of a file as columns, and add its control batches to `content`."""

    def watched(runs: Iterator[BatchRun]) -> Iterator[BatchRun]:
        for run in runs:
            content.add_control(run.index)
            if progress is not None:
                progress(run.end_position - int(run.index["position"][0]))
            yield run

    with SegmentRecords(path, start, end, is_active=is_active, run_filter=watched) as records:
        yield from numpy_batches(records, _COLUMNS)
