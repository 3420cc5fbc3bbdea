"""Handlers: a caller's function that sees all that is moved, and may drop it or put something else in its place.

A raw handler is called with a RecordBatch and its TopicPartition, and returns that batch, another one (a RecordBatch,
or the bytes of one), or None to drop it. A deep one is called with a Record and its TopicPartition, and returns None,
what has `key`, `value`, `headers` and `timestamp`, such as that record, or a tuple of these four.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from _kafkafmt.layout import BASE_OFFSET_LENGTH, BASE_OFFSET_OFFSET
from _kafkafmt.scan import BatchRun, scan
from kafkafmt.batch import RecordBatch
from kafkafmt.log.appending import whole_batches
from kafkafmt.log.reading import first_offset
from kafkafmt.mirror.errors import MirrorError

if TYPE_CHECKING:
    from kafkafmt.types import TopicPartition

Handler = Callable[..., Any]


class HandlerError(Exception):
    """What a handler raised, or returned that it may not: ends the mirror.

    offset: of the record, or the first of the batch, that it was called with. resume_offset: nothing was moved from
    the batch of this offset on.
    """

    def __init__(self, topic_partition: TopicPartition, offset: int, message: str) -> None:
        super().__init__(f"handler: {topic_partition}, offset {offset}: {message}")
        self.offset = self.resume_offset = offset


class NewRecord(NamedTuple):
    """What a deep handler has made of a record. timestamp: in milliseconds."""

    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]
    timestamp: int


def load_handler(name: str) -> Handler:
    """The callable that `MODULE:CALLABLE` names, in the working directory first. Raises MirrorError."""
    module, _, attribute = name.partition(":")
    if not module or not attribute:
        raise MirrorError(f"handler {name!r}: expected MODULE:CALLABLE")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        found: Any = importlib.import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise MirrorError(f"handler {name!r}: {error}") from None
    if not callable(found):
        raise MirrorError(f"handler {name!r}: expected something to call, found {type(found).__name__}")
    handler: Handler = found
    return handler


def handled_batches(handler: Handler, topic_partition: TopicPartition, run: BatchRun) -> Iterator[BatchRun]:
    """What a raw handler lets through of a run, in its order; batches that it leaves as they are stay in runs."""
    kept: list[int] = []
    failure: HandlerError | None = None
    for number in range(len(run)):
        batch = RecordBatch(run, number)
        other: BatchRun | None = None
        try:
            made = handler(batch, topic_partition)
            if made is batch:
                kept.append(number)
                continue
            other = None if made is None else _put_in_place(made, batch)
        except Exception as error:
            failure = HandlerError(
                topic_partition, first_offset(run, number), f"{type(error).__name__}: {error}"
            )
            failure.__cause__ = error
            break
        if other is not None:
            if kept:
                yield BatchRun(run.buffer, run.index[kept], run.origin)
                kept = []
            yield other
    if kept:
        yield BatchRun(run.buffer, run.index[kept], run.origin)
    if failure is not None:
        raise failure


def handled_record(handler: Handler, topic_partition: TopicPartition, record: Any) -> NewRecord | None:
    """What a deep handler makes of a record."""
    try:
        made = handler(record, topic_partition)
        if made is None:
            return None
        if isinstance(made, tuple):
            return NewRecord(*made)
        return NewRecord(made.key, made.value, list(made.headers or ()), made.timestamp)
    except Exception as error:
        message = f"{type(error).__name__}: {error}"
        raise HandlerError(topic_partition, record.offset, message) from error


def _put_in_place(made: Any, batch: RecordBatch) -> BatchRun:
    """A handler's batch, numbered from where the source's begins unless its offsets are within that one's."""
    data = bytearray(made.buffer if isinstance(made, RecordBatch) else made)
    run = whole_batches(data, 0)
    if len(run) != 1:
        raise ValueError(f"expected one batch or None, found {len(run)}")
    run.ensure_valid()
    row = run.index[0]
    first, last = batch.base_offset, batch.last_offset
    if first <= row["base_offset"] <= row["last_offset"] <= last:
        return run
    delta = int(row["last_offset"] - row["base_offset"])
    if first + delta > last:
        raise ValueError(f"expected {last - first + 1} offsets at the most, found {delta + 1}")
    stop = BASE_OFFSET_OFFSET + BASE_OFFSET_LENGTH
    data[BASE_OFFSET_OFFSET:stop] = first.to_bytes(BASE_OFFSET_LENGTH, "big")
    return scan(data)[0]
