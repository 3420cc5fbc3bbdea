"""Scan the records of topics as Arrow: bounded, lazily, and only what is asked for."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING

from kafkafmt._util.extras import missing_package
from kafkafmt.codecs import DEFAULT_MAX_DECOMPRESSED_BYTES
from kafkafmt.columns.read import arrow_schema
from kafkafmt.scanning.arguments import (
    OffsetBounds,
    Offsets,
    Partition,
    Path,
    Timestamps,
    parse_columns,
    parse_decoding,
    parse_offsets,
    parse_partitions,
    parse_paths,
    parse_timestamps,
    parse_topics,
)
from kafkafmt.scanning.decoded import DecodedTask
from kafkafmt.scanning.errors import ScanError
from kafkafmt.scanning.logs import shown_paths
from kafkafmt.scanning.options import DEFAULT_BATCH_BYTES, DEFAULT_SPLIT_BYTES, LogReadOptions
from kafkafmt.scanning.row_bounds import RowBounds
from kafkafmt.scanning.sampling import RecordSamples
from kafkafmt.scanning.selection import Bound
from kafkafmt.scanning.tailing import RecordTail, TailOptions, TailStart
from kafkafmt.scanning.tasks import OffsetRange
from kafkafmt.storage.locations import FILE_SYSTEM_OPTIONS, VIEW_OPTIONS
from kafkafmt.types import ISOLATIONS, TopicPartition

if TYPE_CHECKING:
    import pathlib

    import pandas
    import polars
    import pyarrow as pa
    import pyarrow.dataset

    from kafkafmt.decode.batch_decoder import BatchDecoder
    from kafkafmt.decode.decoding import Decoding
    from kafkafmt.decode.options import Format
    from kafkafmt.scanning.source import RecordSource
    from kafkafmt.scanning.tasks import ScanTask

_CLUSTER = "kafka://"


def scan(
    source: Path | Iterable[Path],
    *,
    topics: str | Iterable[str] | None = None,
    partitions: Partition | Iterable[Partition] | None = None,
    offsets: Offsets | None = None,
    timestamps: Timestamps | None = None,
    columns: Iterable[str] | None = None,
    decode: Decoding | Format | None = None,
    isolation: str = "read_uncommitted",
    on_corrupt: str = "fail",
    batch_bytes: int = DEFAULT_BATCH_BYTES,
    max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES,
    verify: bool = True,
    from_segment_start: bool = False,
    check_overlaps: bool | None = None,
    options: Mapping[str, str] | None = None,
) -> Scan:
    """Return a scan of the records of topics. It reads nothing before its rows, ranges or tasks are requested.

    Args:
        source: a log directory, a partition folder, a segment file, a pattern of these, or a URI (`s3://`,
            `tiered+s3://`, `backup+file://`); or several. Or the brokers and topics of one cluster:
            `kafka://HOST:PORT[,HOST:PORT][/TOPIC,...]`.
        topics: a name, a glob, or several of them, also as `'a,b'`. By default all but Kafka's own topics.
        partitions: those that are read. If the source is one folder that is not named TOPIC-PARTITION, its partition.
        offsets: (start, end) for all partitions, or for each partition in a mapping of all of them; None is the start
            or the end of the partition. Offsets outside a partition are no error: there are no rows.
        timestamps: (from, to), aware datetimes or milliseconds, or None. Each partition begins at its first record
            whose timestamp is `from` or later, and ends before its first one whose timestamp is `to` or later.
        columns: some of key, value, topic, partition, offset, timestamp, timestampType and headers, in any order; by
            default all but headers. Other columns are not materialised.
        decode: how keys and values become Arrow columns: a `kafkafmt.decode.Decoding`, or the format of values alone,
            such as "json" or "text".
        isolation: "read_committed" leaves out aborted transactions, and ends before the first open one.
        on_corrupt: "fail" raises an error for damage, after the rows before it; "skip" logs a warning.
        batch_bytes: about the size of a record batch. max_decompressed_bytes: the most that a batch may decompress to.
        verify: check CRCs.
        from_segment_start: also read records below the log start offset, which are deleted, if segments have them.
        check_overlaps: look up the end of each segment, so that offsets that two segments have are read once. None:
            only of local segments.
        options: settings of the file systems of URIs, such as `region` and `endpoint_override`, and of views; of a
            cluster those of consumers, such as `security.protocol`. `bootstrap.timeout.ms` is how long a cluster has
            to answer first, 5000 by default, and `poll.timeout.ms` how long later reads wait for brokers.

    Raises ScanError, in one line, for invalid arguments. What needs the source raises later: see `Scan`.
    """
    _ensure_arrow()
    parts = parse_partitions(partitions)
    start, end = parse_timestamps(timestamps)
    if isolation not in ISOLATIONS:
        raise ScanError(f"isolation: expected {' or '.join(ISOLATIONS)}, found {isolation!r}")
    if on_corrupt not in ("fail", "skip"):
        raise ScanError(f"on_corrupt: expected fail or skip, found {on_corrupt!r}")
    for name, size in (("batch_bytes", batch_bytes), ("max_decompressed_bytes", max_decompressed_bytes)):
        if type(size) is not int or size < 1:
            raise ScanError(f"{name}: expected a number of bytes, 1 or more, found {size!r}")
    paths = parse_paths(source)
    read = LogReadOptions(
        paths=paths,
        topics=parse_topics(topics, parts),
        topic_partition=next(iter(parts)) if parts is not None and len(parts) == 1 else None,
        starting=Bound(timestamp=start),
        ending=Bound(timestamp=end),
        isolation=isolation,
        on_corrupt=on_corrupt,
        verify=verify,
        from_segment_start=from_segment_start,
        checks_overlaps=check_overlaps,
        max_decompressed_bytes=max_decompressed_bytes,
        max_batch_bytes=batch_bytes,
    )
    names = parse_columns(columns)
    decoding = None if decode is None else parse_decoding(decode, names)
    record_source = _open(read, parts, options or {})
    shown = shown_paths(paths)
    return Scan(ScanRequest(record_source, shown, names, parse_offsets(offsets), decoding, end is not None))


def _open(
    read: LogReadOptions, partitions: frozenset[TopicPartition] | None, options: Mapping[str, str]
) -> RecordSource:
    """Return the source that a URI or paths name. Opens nothing. Raises ScanError."""
    clusters = [path for path in read.paths if isinstance(path, str) and path.startswith(_CLUSTER)]
    if not clusters:
        from kafkafmt.scanning.log_source import LogSource

        return LogSource(replace(read, file_system=_file_system_options(options)), partitions)
    if len(read.paths) > 1:
        raise ScanError(f"source: expected one cluster, or several folders, found {shown_paths(read.paths)}")
    ensure_package(f"a scan of {_CLUSTER}", "kafka", "'kafkafmt[net]'")
    from kafkafmt.scanning.brokers.opening import cluster_source

    return cluster_source(clusters[0], read, partitions, options)


@dataclass(frozen=True)
class ScanRequest:
    """What a scan reads.

    shown: the source, for people. has_end: whether timestamps have an end. wanted: the ranges within those of the
    source; None for all. known: columns of earlier records, whose fields types that are inferred have. keeps_types:
    whether types of schemas that ids select have them with their types, too.
    """

    source: RecordSource
    shown: str
    columns: tuple[str, ...]
    offsets: OffsetBounds | Mapping[TopicPartition, OffsetBounds] = (None, None)
    decoding: Decoding | None = None
    has_end: bool = False
    wanted: Mapping[TopicPartition, OffsetRange] | None = None
    known: pa.Schema | None = None
    keeps_types: bool = False


class Scan:
    """A bounded read of records. It is lazy, can be pickled, and does not change. `kafkafmt.scan` makes it.

    Records that are added after its ranges are known are not read. Libraries that take Arrow's C stream, such as
    pyarrow, DuckDB and Polars, take a scan.
    """

    def __init__(self, request: ScanRequest, whole: Scan | None = None, earlier: Scan | None = None) -> None:
        """whole: the scan whose types of decoded columns this one has, as it is a part of it.

        earlier: the scan whose records tell the types if those of this one do not.
        """
        self._request = request
        self._earlier = earlier
        self._whole = self if whole is None else whole

    def __repr__(self) -> str:
        return f"Scan({self._request.shown}, columns={', '.join(self._request.columns)})"

    @property
    def schema(self) -> pa.Schema:
        """The schema of the rows: the columns of Spark's Kafka source, with its types, or with those of the decoding.

        If the types of decoded columns depend on the records, this reads some. Raises SchemaError if they tell
        no type, as text that is read as JSON, and for a damaged schema.
        """
        return arrow_schema(self._request.columns) if self._decoder is None else self._decoder.schema

    @property
    def _decoder(self) -> BatchDecoder | None:
        return self._whole._own_decoder

    @cached_property
    def _own_decoder(self) -> BatchDecoder | None:
        request = self._request
        if request.decoding is None:
            return None
        topics = sorted({one.topic for one in self._ranges})
        samples, earlier = RecordSamples(request.source, self._ranges), self._earlier
        first = samples.from_start if request.known is None else samples.from_ends
        id_samples = [samples.of_ids, first]
        if earlier is not None:
            id_samples.append(RecordSamples(request.source, earlier._ranges).from_start)
        return request.decoding.decoder(
            request.columns,
            topics=topics,
            sample=first,
            id_samples=id_samples,
            known=request.known,
            keeps_types=request.keeps_types,
        )

    def ranges(self) -> dict[TopicPartition, OffsetRange]:
        """Return the offsets that are read of each partition, from `start` to before `end`. The first call fixes them.

        A partition without such offsets has an empty range. Raises FileNotFoundError and ValueError, in one line, for
        a source without such topics and partitions, and OSError.
        """
        return dict(self._ranges)

    @cached_property
    def _ranges(self) -> dict[TopicPartition, OffsetRange]:
        request = self._request
        found, bounds = request.source.ranges(), request.offsets
        if isinstance(bounds, Mapping):
            _ensure_same(bounds, found)
        wanted = found if request.wanted is None else request.wanted
        return {
            one: _clamped(
                _clamped(range_, wanted[one]), bounds[one] if isinstance(bounds, Mapping) else bounds
            )
            for one, range_ in sorted(found.items())
            if one in wanted
        }

    @property
    def _has_end(self) -> bool:
        bounds = self._request.offsets
        of_all = bounds.values() if isinstance(bounds, Mapping) else [bounds]
        return self._request.has_end or any(end is not None for _, end in of_all)

    @property
    def is_whole(self) -> bool:
        """Whether the scan ends where its source does, at least as far as it has its partitions. Raises as `ranges`."""
        found = self._request.source.ranges()
        return not self._has_end and all(wanted.end == found[one].end for one, wanted in self._ranges.items())

    def present_ends(self) -> dict[TopicPartition, int]:
        """Return where the partitions end in the source now. One that is gone is left out. Raises as `ranges`."""
        read = {one: wanted.end for one, wanted in self._ranges.items()}
        found = self._request.source.refreshed(read, has_new=False).ranges()
        return {one: wanted.end for one, wanted in found.items()}

    @property
    def folders(self) -> Sequence[pathlib.Path]:
        """The local folders that are read."""
        return self._request.source.folders

    def within(self, ranges: Mapping[TopicPartition, OffsetRange]) -> Scan:
        """Return the scan of these offsets of these partitions alone, with the same schema.

        Raises ScanError for other partitions than the scan has.
        """
        return Scan(replace(self._request, wanted=self._within(ranges)), self._whole)

    def continuing(
        self, ranges: Mapping[TopicPartition, OffsetRange], known: pa.Schema, *, keeps_types: bool = False
    ) -> Scan:
        """Return the scan of these offsets alone, which come after records with the columns `known`.

        Types that are inferred have the fields of these columns, and the new ones of records at these offsets: of the
        first and the last ones of each partition. Types of a schema that ids of records select are those of the newest
        schema of such records; with `keeps_types`, the fields of `known` keep their types. Other types are those of the
        scan.

        Raises ScanError for other partitions than the scan has.
        """
        decoding = self._request.decoding
        if decoding is None or not any(decoding.is_of_records(side) for side in decoding.sides()):
            return self.within(ranges)
        wanted = self._within(ranges)
        return Scan(replace(self._request, wanted=wanted, known=known, keeps_types=keeps_types), earlier=self)

    def of_topic(self, topic: str) -> Scan:
        """Return the scan of one topic. The types of its decoded columns are those of this topic alone.

        Raises ScanError if the scan does not have the topic.
        """
        ranges = {one: wanted for one, wanted in self._ranges.items() if one.topic == topic}
        if not ranges:
            raise ScanError(f"no topic {topic!r} in {self._request.shown}")
        return Scan(replace(self._request, wanted=ranges))

    def _within(self, ranges: Mapping[TopicPartition, OffsetRange]) -> dict[TopicPartition, OffsetRange]:
        own = self._ranges
        for one in ranges:
            if one not in own:
                raise ScanError(f"no partition {TopicPartition(*one)} in {self._request.shown}")
        return {TopicPartition(*one): _clamped(own[one], wanted) for one, wanted in ranges.items()}

    def tasks(self, split_bytes: int = DEFAULT_SPLIT_BYTES) -> list[ScanTask]:
        """Return the parts of the scan, in order. Each is read by one process, and can be sent to it.

        split_bytes: about the stored bytes that a task reads. Raises as `ranges`, and KafkaFormatError if a partition
        without records to read ends with damage.
        """
        if split_bytes < 1:
            raise ScanError(f"split_bytes: expected 1 or more, found {split_bytes}")
        source, ranges = self._request.source, self._ranges
        filled = {one: wanted for one, wanted in ranges.items() if wanted.end > wanted.start}
        # No task reads them, and none would report the damage that they may end at.
        source.ensure_readable({one: wanted for one, wanted in ranges.items() if one not in filled})
        return self._tasks_of(source, filled, split_bytes) if filled else []

    def ensure_readable(self) -> None:
        """Raise KafkaFormatError if damage hides the end of a partition, so that `ranges` may lack records of it."""
        self._request.source.ensure_readable(self._ranges)

    def _tasks_of(
        self,
        source: RecordSource,
        ranges: Mapping[TopicPartition, OffsetRange],
        split_bytes: int = DEFAULT_SPLIT_BYTES,
    ) -> list[ScanTask]:
        decoder = self._decoder
        if decoder is None:
            return list(source.tasks(ranges, self._request.columns, split_bytes))
        stored = source.tasks(ranges, decoder.input_columns, split_bytes)
        return [DecodedTask(task, decoder) for task in stored]

    def matching(self, wanted: RowBounds) -> Scan:
        """Return the scan without records that are outside of bounds. It may still have some of them.

        Partitions and offsets outside the bounds are not read, nor records before the first one in the bounds of time.
        """
        ranges = {one: found for one, found in self._ranges.items() if wanted.has_partition(one)}
        ranges = {one: _clamped(found, wanted.offsets) for one, found in ranges.items()}
        filled = [one for one, found in ranges.items() if found.end > found.start]
        if wanted.first_timestamp is not None and filled:
            for one, start in self._request.source.find_timestamp(wanted.first_timestamp, filled).items():
                ranges[one] = _clamped(ranges[one], (ranges[one].end if start is None else start, None))
        return self.within(ranges)

    def to_batches(self, columns: Sequence[str] | None = None) -> Generator[pa.RecordBatch, None, None]:
        """Yield the rows by topic, partition and ascending offset, in record batches of about `batch_bytes`.

        columns: some of `schema`, in any order; None for all. Others are not materialised and not decoded.

        Raises as `ranges` and `schema`, and KafkaFormatError for damage, after the rows before it.
        """
        for task in self.tasks():
            yield from task.read(columns)

    def tail(
        self, *, rows: int | None = None, seconds: float | None = None, poll_seconds: float = 1.0
    ) -> RecordTail:
        """Return an iterator of the records that are added after those of the scan, in record batches, as they come.

        It begins at the ends of `ranges()`, so together with the scan it has each record once. Partitions that appear
        later are read from their beginnings, unless the scan is a part of another.

        Args:
            rows: the most rows that it yields. None: no limit.
            seconds: how long it waits for records; those that are there when the time is over are read. None: until it
                is closed.
            poll_seconds: how long it waits before it looks again.

        Raises ScanError if the scan has an end of offsets or of timestamps.
        """
        request = self._request
        bounds = request.offsets
        if self._has_end:
            raise ScanError("tail: expected offsets and timestamps without an end, as it reads what is added")
        if (rows is not None and rows < 0) or (seconds is not None and seconds < 0) or poll_seconds <= 0:
            raise ScanError("tail: expected rows and seconds of 0 or more, and a pause longer than 0")
        offsets = {}
        for one, found in self._ranges.items():
            start, _ = bounds[one] if isinstance(bounds, Mapping) else bounds
            if start is not None and start > found.end:
                raise ScanError(f"tail: partition {one} ends at {found.end}, before its start {start}")
            offsets[one] = found.end
        start_at = TailStart(request.source, offsets, request.wanted is None, self._tasks_of)
        return RecordTail(start_at, TailOptions(rows, seconds, poll_seconds))

    def to_arrow(self) -> pa.Table:
        """Return all rows as a table. Raises as `to_batches`."""
        import pyarrow as pa

        return pa.Table.from_batches(self.to_batches(), self.schema)

    def to_pandas(self) -> pandas.DataFrame:
        """Return all rows as a pandas DataFrame. Raises as `to_batches`, and ScanError without pandas."""
        ensure_package("to_pandas", "pandas")
        return self.to_arrow().to_pandas()

    def to_polars(self) -> polars.LazyFrame:
        """Return a LazyFrame that reads the scan when it is collected. Raises ScanError without Polars.

        It reads only the columns that the query needs, and only the partitions and offsets that its filters select. A
        filter on timestamps leaves out the records before the first match. A limit ends the scan.
        """
        ensure_package("to_polars", "polars")
        from kafkafmt.scanning.polars_source import lazy_frame

        return lazy_frame(self)

    def to_dataset(self) -> pyarrow.dataset.Dataset:
        """Return a `pyarrow.dataset.Dataset`. DuckDB gives it the columns and filters of a query; see `to_polars`.

        DuckDB also takes the scan itself, and then reads all of its columns and rows.
        """
        from kafkafmt.scanning.dataset import ScanDataset

        return ScanDataset(self)

    def __arrow_c_schema__(self) -> object:
        """Return the schema as Arrow's C schema, which reads no rows."""
        return self.schema.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Return the rows as Arrow's C stream (the Arrow PyCapsule interface)."""
        import pyarrow as pa

        reader = pa.RecordBatchReader.from_batches(self.schema, self.to_batches())
        return reader.__arrow_c_stream__(requested_schema)


def _clamped(found: OffsetRange, bounds: tuple[int | None, int | None]) -> OffsetRange:
    """Return the offsets of a range within bounds. A range without any is empty, and lies within `found`."""
    start, end = bounds
    first = min(max(found.start, start or 0), found.end)
    return OffsetRange(first, max(first, found.end if end is None else min(found.end, end)))


def _ensure_same(bounds: Mapping[TopicPartition, OffsetBounds], found: Iterable[TopicPartition]) -> None:
    unknown, missing = sorted(set(bounds) - set(found)), sorted(set(found) - set(bounds))
    if unknown:
        raise ScanError(f"offsets: no partition {unknown[0]}: found {', '.join(map(str, sorted(found)))}")
    if missing:
        raise ScanError(
            f"offsets: expected those of every partition, found none of {', '.join(map(str, missing))}"
        )


def _file_system_options(options: Mapping[str, str]) -> Mapping[str, str]:
    from kafkafmt._util.names import unknown_name

    known = (*FILE_SYSTEM_OPTIONS, *VIEW_OPTIONS)
    for name in options:
        if name not in known:
            raise ScanError(unknown_name("option", name, known))
    return options


def _ensure_arrow() -> None:
    ensure_package("a scan", "pyarrow", "'kafkafmt[arrow]'")


def ensure_package(what: str, name: str, install: str | None = None) -> None:
    """Raise ScanError if a package that `what` needs is not installed."""
    try:
        import_module(name)
    except ImportError:
        raise ScanError(missing_package(what, name, install)) from None
