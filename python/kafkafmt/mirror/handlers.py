"""Handlers: a caller's function that receives each batch or record that is mirrored, and may drop or replace it.

A raw handler is called with a RecordBatch and its TopicPartition. It returns that batch, another one (a RecordBatch,
or the bytes of one), or None to drop it. A deep handler is called with a Record and its TopicPartition. It returns that
record, any object with `key`, `value`, `headers` and `timestamp`, a tuple of these four, or None to drop it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from _kafkafmt.batches.scan import BatchRun, scan
from _kafkafmt.wire.layout import BASE_OFFSET_LENGTH, BASE_OFFSET_OFFSET
from kafkafmt._util.callables import load_callable
from kafkafmt.mirror.errors import MirrorError
from kafkafmt.records.batch import RecordBatch
from kafkafmt.records.runs import select_batches, whole_batches
from kafkafmt.records.trimming import base_offset_of

if TYPE_CHECKING:
    from kafkafmt.types import TopicPartition

Handler = Callable[..., Any]


class HandlerError(Exception):
    """A handler raised an error, or returned a value that is not valid. This ends the mirror.

    offset: of the record, or of the first record of the batch, that the handler was called with.
    resume_offset: the batch of this offset and all after it were not mirrored.
    """

    def __init__(self, topic_partition: TopicPartition, offset: int, message: str) -> None:
        super().__init__(f"handler: {topic_partition}, offset {offset}: {message}")
        self.offset = self.resume_offset = offset


class NewRecord(NamedTuple):
    """The record that a deep handler returned. timestamp: in milliseconds."""

    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]
    timestamp: int


def load_handler(name: str) -> Handler:
    """Import the callable `MODULE:CALLABLE`, looked up in the working directory first. Raises MirrorError."""
    try:
        return load_callable(name)
    except ValueError as error:
        raise MirrorError(f"handler {error}") from None


def handled_batches(
    handler: Handler, topic_partition: TopicPartition, run: BatchRun, max_decompressed_bytes: int
) -> Iterator[BatchRun]:
    """Yield the batches that a raw handler returns, in order. Unchanged ones stay a run up to the next replaced one.

    max_decompressed_bytes: the limit for each batch whose records are read.
    Raises HandlerError, after the batches before it were yielded.
    """
    kept: list[int] = []
    failure: HandlerError | None = None
    for number in range(len(run)):
        batch = RecordBatch(run, number, max_decompressed_bytes)
        other: BatchRun | None = None
        try:
            made = handler(batch, topic_partition)
            if made is batch:
                kept.append(number)
                continue
            other = None if made is None else _put_in_place(made, batch, max_decompressed_bytes)
        except Exception as error:
            base_offset = base_offset_of(run, number, max_decompressed_bytes)
            failure = HandlerError(topic_partition, base_offset, f"{type(error).__name__}: {error}")
            failure.__cause__ = error
            break
        if other is not None:
            if kept:
                yield select_batches(run, kept)
                kept = []
            yield other
    if kept:
        yield select_batches(run, kept)
    if failure is not None:
        raise failure


def handled_record(handler: Handler, topic_partition: TopicPartition, record: Any) -> NewRecord | None:
    """Return the record that a deep handler returns, or None to drop it. Raises HandlerError."""
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


def _put_in_place(made: Any, batch: RecordBatch, max_decompressed_bytes: int) -> BatchRun:
    """Return a handler's batch. Unless its offsets are within those of `batch`, it begins at that one's first offset.

    Raises ValueError if it is not one whole batch, has more offsets than `batch`, or is a v0/v1 wrapper, whose inner
    offsets stay, with other offsets.
    """
    data = bytearray(made.buffer if isinstance(made, RecordBatch) else made)
    run = whole_batches(data)
    if len(run) != 1:
        raise ValueError(f"expected one batch or None, found {len(run)}")
    run.ensure_valid()
    first, last = batch.base_offset, batch.last_offset
    made_first = RecordBatch(run, 0, max_decompressed_bytes).base_offset
    made_last = int(run.index["last_offset"][0])
    if first <= made_first <= made_last <= last:
        return run
    if run.index["base_offset"][0] < 0:
        raise ValueError(
            f"expected offsets {first} to {last} in a wrapper, found {made_first} to {made_last}"
        )
    delta = made_last - made_first
    if first + delta > last:
        raise ValueError(f"expected at most {last - first + 1} offsets, found {delta + 1}")
    stop = BASE_OFFSET_OFFSET + BASE_OFFSET_LENGTH
    data[BASE_OFFSET_OFFSET:stop] = first.to_bytes(BASE_OFFSET_LENGTH, "big")
    return scan(data)[0]
