"""The records that were fetched of one partition, decoded as they are taken: objects, or columns without objects.

Batches are decompressed and decoded in chunks, as a whole. A chunk may be taken in parts, and in turns as records and
as columns. So positions move by records.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from kafka.consumer.fetcher import ConsumerRecord

from _kafkafmt.client.consumer_records import consumer_records
from _kafkafmt.columns.columns import ColumnBuilder
from _kafkafmt.records.decode import LocatedRecords
from kafkafmt._util.freed_memory import keep_freed_memory
from kafkafmt.client.partition_batches import BatchOptions, PartitionBatches
from kafkafmt.codecs import DEFAULT_MAX_DECOMPRESSED_BYTES
from kafkafmt.columns.parts import slice_columns
from kafkafmt.columns.read import arrow_schema, beyond_arrow, numpy_columns, range_error, record_batch
from kafkafmt.errors import KafkaFormatError
from kafkafmt.records.decoding import decompressed_chunks
from kafkafmt.types import TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa
    from kafka.serializer import Deserializer
    from numpy.typing import NDArray

    from _kafkafmt.batches.scan import BatchRun
    from kafkafmt.client.fetch_metrics import FetchMetrics
    from kafkafmt.client.fetch_queue import Fetched
    from kafkafmt.columns.read import Column
    from kafkafmt.records.decoding import Payloads

_ALL = 2**62


class Chunk(NamedTuple):
    """Batches `first` to `stop` (exclusive) of a run, with their decompressed payloads."""

    run: BatchRun
    first: int
    stop: int
    payloads: Payloads
    topic_partition: TopicPartition
    verify: bool


class Decoded(Protocol):
    """A decoded chunk. offsets: of its records."""

    offsets: NDArray[Any]

    def slice(self, first: int, stop: int) -> list[Any]:
        """Return what the consumer returns for these records, in a list. Raises RecordError."""
        ...


class Decoder(Protocol):
    """Decodes chunks into one kind of result."""

    def __call__(self, chunk: Chunk, /) -> Decoded: ...


class RecordError(Exception):
    """A record cannot be returned. The error is the cause.

    before: what the consumer returns for the `count` records before it.
    """

    def __init__(self, before: list[Any], count: int) -> None:
        super().__init__(f"a record cannot be returned, after {count} others")
        self.before = before
        self.count = count


class RecordDecoder:
    """Decodes chunks into kafka-python's ConsumerRecord objects. key, value: deserializers, or None for bytes."""

    def __init__(self, key: Deserializer | None, value: Deserializer | None) -> None:
        self._key = key
        self._value = value
        keep_freed_memory()

    def __call__(self, chunk: Chunk, /) -> Decoded:
        run, first, stop, payloads, topic_partition, verify = chunk
        located = LocatedRecords(run, first, stop, payloads, verify=verify)
        return _DecodedRecords(located, topic_partition, self)

    @property
    def has_deserializers(self) -> bool:
        """Whether keys or values are not returned as bytes."""
        return self._key is not None or self._value is not None

    def deserialize(self, records: list[ConsumerRecord]) -> list[ConsumerRecord]:
        """Return the records with deserialized keys and values. Raises RecordError."""
        found: list[ConsumerRecord] = []
        for record in records:
            key, value, topic, headers = record.key, record.value, record.topic, record.headers
            try:
                if self._key is not None:
                    key = self._key.deserialize(topic, headers, key)
                if self._value is not None:
                    value = self._value.deserialize(topic, headers, value)
            except Exception as error:
                raise RecordError(found, len(found)) from error
            found.append(record._replace(key=key, value=value))
        return found


class _DecodedRecords:
    def __init__(self, located: LocatedRecords, source: TopicPartition, decoder: RecordDecoder) -> None:
        self.offsets = located.offsets()
        self._located = located
        self._source = source
        self._decoder = decoder

    def slice(self, first: int, stop: int) -> list[Any]:
        topic, partition = self._source
        records = consumer_records(ConsumerRecord, self._located, first, stop, topic, partition)
        return self._decoder.deserialize(records) if self._decoder.has_deserializers else records


def _built(chunk: Chunk, columns: tuple[str, ...], *, large_offsets: bool) -> tuple[int, dict[str, Any]]:
    run, first, stop, payloads, _, verify = chunk
    builder = ColumnBuilder(columns, large_offsets=large_offsets)
    builder.add(run, first, stop, payloads, verify=verify)
    return builder.count, builder.take()


class ArrowDecoder:
    """Decodes chunks into Arrow record batches with the columns of `Records.to_arrow`."""

    def __init__(self) -> None:
        self.schema = arrow_schema()

    def __call__(self, chunk: Chunk, /) -> Decoded:
        count, arrays = _built(chunk, tuple(self.schema.names), large_offsets=False)
        timestamps = arrays["timestamp"]
        rows = beyond_arrow(timestamps)
        beyond = _BeyondArrow(rows, timestamps[rows])
        timestamps[rows] = 0
        batch = record_batch(arrays, count, self.schema, chunk.topic_partition)
        return _DecodedArrow(arrays["offset"], batch, beyond, chunk.topic_partition)


class _BeyondArrow(NamedTuple):
    """The records of a chunk whose timestamps Arrow cannot hold, and these timestamps in milliseconds."""

    rows: NDArray[Any]
    timestamps: NDArray[Any]


class _DecodedArrow:
    def __init__(
        self, offsets: NDArray[Any], batch: pa.RecordBatch, beyond: _BeyondArrow, source: TopicPartition
    ) -> None:
        self.offsets = offsets
        self._batch = batch
        self._beyond = beyond
        self._source = source

    def slice(self, first: int, stop: int) -> list[Any]:
        rows, timestamps = self._beyond
        number = int(rows.searchsorted(first))
        if number == len(rows) or rows[number] >= stop:
            return [self._batch.slice(first, stop - first)]
        count = int(rows[number]) - first
        error = range_error(timestamps[number])
        error.message = f"{self._source} at offset {self.offsets[first + count]}: {error.message}"
        raise RecordError([self._batch.slice(first, count)] if count else [], count) from error


class NumpyDecoder:
    """Decodes chunks into numpy columns. columns: their names."""

    def __init__(self, columns: tuple[str, ...]) -> None:
        self._columns = columns

    def __call__(self, chunk: Chunk, /) -> Decoded:
        count, arrays = _built(chunk, self._columns, large_offsets=True)
        columns = numpy_columns(arrays, self._columns, count, chunk.topic_partition)
        return _DecodedNumpy(arrays["offset"], columns)


class _DecodedNumpy:
    def __init__(self, offsets: NDArray[Any], columns: dict[str, Column]) -> None:
        self.offsets = offsets
        self._columns = columns

    def slice(self, first: int, stop: int) -> list[Any]:
        return [slice_columns(self._columns, first, stop)]


class PartitionRecords:
    """The records that were fetched of one partition, from the fetched offset on. Control records are left out.

    Records before damage are returned, then the damage is raised.

    metrics: gets their number and bytes once they were taken or dropped.
    """

    def __init__(self, fetched: Fetched, metrics: FetchMetrics, *, check_crcs: bool) -> None:
        self._batches = PartitionBatches(fetched, BatchOptions(check_crcs, False, False))
        self._topic_partition = TopicPartition(*fetched.topic_partition)
        self._metrics = metrics
        self._check_crcs = check_crcs
        self._size = len(fetched.records)
        self.next_fetch_offset = fetched.offset
        self.leader_epoch = -1
        self.records_read = 0
        self._runs = deque(self._batches.take(_ALL))
        # After the last batch, or after the last one before damage.
        self._end = (self._batches.next_fetch_offset, self._batches.leader_epoch)
        self._chunks: Iterator[tuple[int, int, Payloads]] | None = None  # of the current run
        self._run: BatchRun | None = None
        self._chunk: Chunk | None = None
        self._decoded: Decoded | None = None
        self._decoder: Decoder | None = None
        self._next = 0  # record of the current chunk
        self._taken_bytes = 0
        self._error: Exception | None = None
        self._is_drained = False

    def __bool__(self) -> bool:
        return not self._is_drained

    @property
    def bytes_left(self) -> int:
        """The number of fetched bytes whose batches were not returned yet."""
        return self._size - self._taken_bytes

    def drain(self) -> None:
        """Drop the records that are left."""
        if not self._is_drained:
            self._is_drained = True
            self._runs.clear()
            self._chunk = self._decoded = self._chunks = self._run = None
            self._metrics.record(self._topic_partition, self._taken_bytes, self.records_read)

    def take(self, decoder: Decoder, most: int) -> list[Any]:
        """Return the next `most` records or fewer, as the decoder makes them.

        Raises CorruptFetchedBatchError if the next batch is damaged, the error of a deserializer, and
        TimestampRangeError for a timestamp that Arrow cannot hold.
        """
        before = self.next_fetch_offset
        taken: list[Any] = []
        while most > 0 and (decoded := self._current(decoder)) is not None:
            stop = min(self._next + most, len(decoded.offsets))
            most -= stop - self._next
            try:
                taken += decoded.slice(self._next, stop)
            except RecordError as failed:
                self._move(decoded, self._next + failed.count)
                taken += failed.before
                if not taken:
                    raise failed.__cause__ or failed from None
                return taken
            self._move(decoded, stop)
        if not self._is_at_end():
            return taken
        self.next_fetch_offset, self.leader_epoch = self._end
        is_damaged = self._error is not None or bool(self._batches)
        if is_damaged and (taken or self.next_fetch_offset > before):
            return taken
        self.drain()
        if self._error is not None:
            raise self._error
        if is_damaged:
            self._batches.take(1)
        return taken

    def _move(self, decoded: Decoded, stop: int) -> None:
        """Move the position after the record before number `stop` of the chunk."""
        assert self._chunk is not None
        self.records_read += stop - self._next
        self._next = stop
        rows = self._chunk.run.index[self._chunk.first : self._chunk.stop]
        if stop == len(decoded.offsets):
            row = rows[-1]
            self.next_fetch_offset = max(int(row["last_offset"]) + 1, self.next_fetch_offset)
            self._taken_bytes += int(rows["size"].sum())
        elif stop:
            offset = int(decoded.offsets[stop - 1])
            row = rows[min(int(rows["last_offset"].searchsorted(offset)), len(rows) - 1)]
            self.next_fetch_offset = max(offset + 1, self.next_fetch_offset)
        else:
            return
        self.leader_epoch = int(row["partition_leader_epoch"])

    def _is_at_end(self) -> bool:
        """Return whether all records were taken, up to the end or to damage."""
        if self._decoded is not None and self._next < len(self._decoded.offsets):
            return False
        if self._error is not None:
            return True
        return not self._runs and (self._chunk is None or self._chunk.stop == len(self._chunk.run))

    def _current(self, decoder: Decoder) -> Decoded | None:
        """Return the decoded chunk of the next record; None at the end."""
        while True:
            if self._decoded is not None and self._next < len(self._decoded.offsets):
                if self._decoder is not decoder:
                    assert self._chunk is not None
                    self._decoded, self._decoder = decoder(self._chunk), decoder
                return self._decoded
            if self._error is not None or not self._open_chunk(decoder):
                return None

    def _open_chunk(self, decoder: Decoder) -> bool:
        """Decompress and decode the next chunk. Return whether there is one before the end or damage."""
        try:
            chunk = self._next_chunk()
        except KafkaFormatError as error:
            self._fail(error, self.next_fetch_offset, self.leader_epoch)
            return False
        damage: KafkaFormatError | None = None
        while chunk is not None:
            try:
                decoded = decoder(chunk)
            except KafkaFormatError as error:
                damage, chunk = error, _before(chunk, error)
            else:
                self._set_chunk(chunk, decoded, decoder)
                break
        if damage is not None:
            offset, epoch = self.next_fetch_offset, self.leader_epoch
            if chunk is not None:
                row = chunk.run.index[chunk.stop - 1]
                offset, epoch = int(row["last_offset"]) + 1, int(row["partition_leader_epoch"])
            self._fail(damage, offset, epoch)
        return chunk is not None

    def _fail(self, error: KafkaFormatError, offset: int, epoch: int) -> None:
        """End with an error, after the records below an offset."""
        self._runs.clear()
        self._end = (offset, epoch)
        self._error = self._batches.error_of(error, offset)

    def _set_chunk(self, chunk: Chunk, decoded: Decoded, decoder: Decoder) -> None:
        is_first = self._chunk is None
        self._chunk, self._decoded, self._decoder = chunk, decoded, decoder
        self._next = 0
        if is_first:  # the fetched offset may be within the first batch
            reached = decoded.offsets >= self.next_fetch_offset
            self._next = int(reached.argmax()) if reached.any() else len(reached)
        if self._next == len(decoded.offsets):
            self._move(decoded, self._next)

    def _next_chunk(self) -> Chunk | None:
        while True:
            if self._chunks is None:
                if not self._runs:
                    return None
                self._run = self._runs.popleft()
                self._chunks = decompressed_chunks(
                    self._run, verify=False, limit=DEFAULT_MAX_DECOMPRESSED_BYTES
                )
            found = next(self._chunks, None)
            if found is not None:
                assert self._run is not None
                # The CRCs of the batches were checked as they arrived. Messages in wrappers have CRCs of their own.
                verify = self._check_crcs and bool((self._run.index["magic"] < 2).any())
                return Chunk(self._run, *found, self._topic_partition, verify)
            self._chunks = None


def _before(chunk: Chunk, error: KafkaFormatError) -> Chunk | None:
    """Return the batches of a chunk before the one that an error is of; None if there are none."""
    if error.position is None:
        return None
    stop = int(chunk.run.index["position"].searchsorted(error.position))
    if not chunk.first < stop < chunk.stop:
        return None
    payloads = chunk.payloads[: stop - chunk.first] if chunk.payloads else None
    return chunk._replace(stop=stop, payloads=payloads)
