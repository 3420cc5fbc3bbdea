"""The options of an erasure: plain values, which can be sent to other processes and machines."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias, get_args

import numpy as np

from _kafkafmt.records.key_table import KeySet
from kafkafmt._util.callables import load_callable
from kafkafmt.codecs import DEFAULT_MAX_DECOMPRESSED_BYTES
from kafkafmt.jobs.rewrite import OnCorrupt

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from _kafkafmt.records.decode import LocatedRecords, Record
    from kafkafmt.types import TopicPartition

# The entry of a sidecar: whether the segment was planned without the log start offset of its source.
FROM_SEGMENT_START = "from_segment_start"
Predicate: TypeAlias = "Callable[[Record, TopicPartition | None], object]"


class PredicateError(ValueError):
    """The function that selects records raised an error. The message, one line, names the record."""


@dataclass(frozen=True)
class Replacement:
    """The new value of records whose value is replaced; None: null."""

    value: bytes | None


@dataclass(frozen=True)
class EraseOptions:
    """The options of an erasure. Exactly one of `keys` and `where` is given.

    keys: records with one of these keys are erased.
    where: `MODULE:CALLABLE`. It is called with each record and its TopicPartition, or None if the folder has no such
        name. Records for which it returns a true value are erased.
    replacement: the new value of the records; None: the records are removed.
    on_corrupt: "fail": a segment with damage fails; "skip": damaged batches are left out and reported.
    force: replace segments that an unfinished erasure with other options has written.

    Raises ValueError for invalid options, and if the callable cannot be imported.
    """

    keys: KeySet | None = None
    where: str | None = None
    replacement: Replacement | None = None
    on_corrupt: OnCorrupt = "fail"
    force: bool = False
    keys_digest: str | None = field(init=False, default=None, repr=False)

    def __post_init__(self) -> None:
        if (self.keys is None) == (self.where is None):
            raise ValueError("expected either keys or where")
        if self.on_corrupt not in get_args(OnCorrupt):
            raise ValueError(f"on_corrupt: expected fail or skip, found {self.on_corrupt!r}")
        if self.where is not None:
            load_callable(self.where)
        if self.keys is not None:
            object.__setattr__(self, "keys_digest", _digest(self.keys))

    @property
    def max_batch_bytes(self) -> int:
        """The most bytes that a batch may decompress to."""
        return DEFAULT_MAX_DECOMPRESSED_BYTES

    def selector(self, topic_partition: TopicPartition | None) -> Selector:
        """Return the function that selects records of a partition."""
        if self.keys is not None:
            keys = self.keys
            return lambda located, is_data: keys.members(located) & is_data
        return _Where(self.predicate(), topic_partition)

    def predicate(self) -> Predicate:
        """Import and return the callable `where`. Raises ValueError."""
        assert self.where is not None
        return load_callable(self.where)


# Called with located records and a mask of those of data batches. Returns a mask of the records to erase.
Selector: TypeAlias = "Callable[[LocatedRecords, NDArray[np.bool_]], NDArray[np.bool_]]"


class _Where:
    """Select records by a caller's function."""

    def __init__(self, predicate: Predicate, topic_partition: TopicPartition | None) -> None:
        self._predicate = predicate
        self._topic_partition = topic_partition

    def __call__(self, located: LocatedRecords, is_data: NDArray[np.bool_]) -> NDArray[np.bool_]:
        found = np.zeros(len(located), np.bool_)
        for number, record in enumerate(located):
            if is_data[number]:
                found[number] = is_selected(self._predicate, record, self._topic_partition)
        return found


def is_selected(predicate: Predicate, record: Record, topic_partition: TopicPartition | None) -> bool:
    """Return whether the predicate selects a record. Raises PredicateError if it raises an error."""
    try:
        return bool(predicate(record, topic_partition))
    except Exception as error:
        where = "record" if topic_partition is None else str(topic_partition)
        message = " ".join(f"{type(error).__name__}: {error}".split())
        raise PredicateError(f"--where: {where}, offset {record.offset}: {message}") from error


def _digest(keys: KeySet) -> str:
    """Return a digest by which a later run recognises the same keys."""
    found = hashlib.sha256()
    for key in sorted(keys):
        found.update(len(key).to_bytes(8, "big"))
        found.update(key)
    return found.hexdigest()


def settings_of(options: EraseOptions) -> dict[str, Any]:
    """Return the options that determine the result, for JSON."""
    replacement = options.replacement
    value = (
        None if replacement is None else ["null" if replacement.value is None else replacement.value.hex()]
    )
    return {"keys_digest": options.keys_digest, "where": options.where, "replacement": value}
