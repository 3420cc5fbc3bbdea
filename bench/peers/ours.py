"""kafkafmt's side of each row, through its public API."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor

from kafka.cluster import ClusterMetadata

from bench.peers import accumulating
from bench.peers.protocol import Prepare, Run, Tally, serve
from bench.segments import BATCH_BYTES
from kafkafmt import (
    AccumulatorOptions,
    BatchForwarder,
    BinaryColumn,
    Codec,
    ConversionStats,
    LazyDownConvertRecords,
    MemoryRecords,
    RecordAccumulator,
    RecordBatchBuilder,
    build_batches,
)
from kafkafmt.build.combining import BatchCombiner

TO_MAGIC = 1
COLUMN_RECORDS = 8192
# The default `--batch-size` of `kafkafmt mirror`.
COMBINED_BYTES = 256 * 1024


def convert(data: bytes, *, verify: bool = False) -> Run:
    records = MemoryRecords(data)

    def run() -> Tally:
        converted = records.down_convert(TO_MAGIC, verify=verify)
        return Tally(converted.stats.records_converted, converted.records.size_in_bytes)

    return run


def convert_verified(data: bytes) -> Run:
    return convert(data, verify=True)


def convert_lazily(data: bytes, *, verify: bool = False, reuse_memory: bool = True) -> Run:
    records = MemoryRecords(data)

    def run() -> Tally:
        lazy = LazyDownConvertRecords(records, TO_MAGIC, verify=verify)
        stats = ConversionStats()
        produced = sum(map(len, lazy.chunks(reuse_memory, stats=stats)))
        return Tally(stats.records_converted, produced)

    return run


def convert_lazily_verified(data: bytes) -> Run:
    return convert_lazily(data, verify=True)


def convert_lazily_owned(data: bytes) -> Run:
    """As `chunks()` is by default: each chunk owns its bytes."""
    return convert_lazily(data, reuse_memory=False)


def numpy_all(data: bytes) -> Run:
    records = MemoryRecords(data)
    return lambda: _numpy_tally([records.to_numpy()])


def numpy_batches(data: bytes, *, verify: bool = True) -> Run:
    records = MemoryRecords(data)
    return lambda: _numpy_tally(records.numpy_batches(verify=verify))


def numpy_batches_unverified(data: bytes) -> Run:
    return numpy_batches(data, verify=False)


def _numpy_tally(chunks: Iterable[Mapping[str, object]]) -> Tally:
    count = size = 0
    for chunk in chunks:
        value = chunk["value"]
        assert isinstance(value, BinaryColumn)
        count += len(value)
        size += len(value.data)
    return Tally(count, size)


def arrow_all(data: bytes) -> Run:
    records = MemoryRecords(data)
    return lambda: Tally(records.to_arrow().num_rows)


def arrow_batches(data: bytes) -> Run:
    records = MemoryRecords(data)
    return lambda: Tally(sum(batch.num_rows for batch in records.arrow_batches()))


def arrow_views(data: bytes) -> Run:
    records = MemoryRecords(data)
    columns = ("offset", "timestamp", "key", "value")
    return lambda: Tally(sum(batch.num_rows for batch in records.arrow_batches(columns, views=True)))


def index(data: bytes) -> Run:
    records = MemoryRecords(data)
    return lambda: Tally(len(records.index()))


def index_runs(data: bytes) -> Run:
    records = MemoryRecords(data)
    return lambda: Tally(sum(map(len, records.runs())))


def check(data: bytes) -> Run:
    records = MemoryRecords(data)

    def run() -> Tally:
        count = 0
        for batches in records.runs():
            batches.ensure_valid()
            count += len(batches)
        return Tally(count)

    return run


def iterate(data: bytes) -> Run:
    records = MemoryRecords(data)

    def run() -> Tally:
        count = size = 0
        for record in records.records():
            key, value = record.key, record.value
            count += 1
            size += len(value or b"") + (len(key) if key is not None else 0)
        return Tally(count, size)

    return run


def build_from_rows(data: bytes) -> Run:
    batches = [
        [(record.timestamp, record.key, record.value) for record in batch]
        for batch in MemoryRecords(data).batches()
    ]

    def run() -> Tally:
        offset = produced = 0
        for rows in batches:
            builder = RecordBatchBuilder(base_offset=offset)
            for timestamp, key, value in rows:
                builder.append(timestamp, key, value)
            offset += len(rows)
            produced += len(builder.build())
        return Tally(offset, produced)

    return run


def build_from_columns(data: bytes) -> Run:
    columns = MemoryRecords(data).to_numpy(["timestamp", "key", "value"])

    def run() -> Tally:
        batches = build_batches(
            columns["timestamp"], columns["key"], columns["value"], batch_size=BATCH_BYTES
        )
        return Tally(len(columns["timestamp"]), sum(map(len, batches)))

    return run


def combine(data: bytes) -> Run:
    """What an adaptive mirror does with small batches before it sends them."""
    runs = list(MemoryRecords(data).runs())
    combiner = BatchCombiner(COMBINED_BYTES, reuses_memory=True)

    def run() -> Tally:
        forwarder = BatchForwarder(verify=False, clears_producer_state=False, combiner=combiner)
        count = size = 0
        for batches in runs:
            for forwarded in forwarder.forward(batches):
                count += int(forwarded.source_arrays()[1].sum())
                size += int(forwarded.run.index["size"].sum())
        return Tally(count, size)

    return run


def rebuild_columns(data: bytes) -> Run:
    """What `kafkafmt mirror --deep` does with the same: columns, and new batches of these."""
    records = MemoryRecords(data)

    def run() -> Tally:
        count = size = 0
        for columns in records.numpy_batches(
            ["timestamp", "key", "value", "headers", "offset"], verify=False
        ):
            timestamps, keys, values, headers = (
                columns[name] for name in ("timestamp", "key", "value", "headers")
            )
            batches = build_batches(timestamps, keys, values, headers, batch_size=COMBINED_BYTES)
            count += len(timestamps)
            size += sum(map(len, batches))
        return Tally(count, size)

    return run


def accumulate(codec: Codec) -> Prepare:
    """What `kafkafmt.net.Producer` does between `send` and its sockets: each full batch is drained at once."""

    def prepare(data: bytes) -> Run:
        rows = accumulating.rows_of(MemoryRecords(data).batches())
        cluster = accumulating.cluster()

        def run() -> Tally:
            accumulator = _accumulator(codec)
            produced = 0
            for partition, timestamp, key, value in rows:
                appended = accumulator.append(partition, timestamp, key, value, now_ms=_now_ms())
                if appended is not None and appended[1]:
                    produced += _drained(accumulator, cluster)
            return Tally(len(rows), produced + _flushed(accumulator, cluster))

        return run

    return prepare


def accumulate_columns(codec: Codec) -> Prepare:
    """The same of Arrow columns, a partition's records 8,192 at a time."""

    def prepare(data: bytes) -> Run:
        stored = MemoryRecords(data).to_arrow(["timestamp", "key", "value"])
        parts = [part.columns for part in stored.to_batches(COLUMN_RECORDS)]
        cluster = accumulating.cluster()

        def run() -> Tally:
            accumulator = _accumulator(codec)
            produced = 0
            for number, (timestamps, keys, values) in enumerate(parts):
                partition = accumulating.PARTITIONS[number % len(accumulating.PARTITIONS)]
                accumulator.append_columns(partition, timestamps, keys, values, now_ms=_now_ms())
                while accumulator.has_undrained:
                    produced += _drained(accumulator, cluster)
            return Tally(len(stored), produced)

        return run

    return prepare


def _accumulator(codec: Codec) -> RecordAccumulator:
    return RecordAccumulator(AccumulatorOptions(codec=codec, linger_ms=accumulating.LINGER_MS))


def _now_ms() -> float:
    return time.monotonic() * 1000


def _drained(accumulator: RecordAccumulator, cluster: ClusterMetadata) -> int:
    """Drain what is ready, as acknowledged at once; returns its bytes."""
    produced = 0
    nodes = accumulator.ready(cluster, _now_ms()).nodes
    for batches in accumulator.drain(cluster, nodes, accumulating.MAX_REQUEST_BYTES, _now_ms()).values():
        for batch in batches:
            produced += batch.size_in_bytes
            batch.complete(0)
            accumulator.deallocate(batch)
    return produced


def _flushed(accumulator: RecordAccumulator, cluster: ClusterMetadata) -> int:
    """Drain all that is left."""
    produced = 0
    accumulator.begin_flush()
    while accumulator.has_undrained:
        produced += _drained(accumulator, cluster)
    return produced


def twice(prepare: Prepare, *, threads: int) -> Prepare:
    """The work over two segments, which share no memory."""

    def prepare_two(data: bytes) -> Run:
        runs = [prepare(data), prepare(bytes(bytearray(data)))]
        pool = ThreadPoolExecutor(threads)

        def run() -> Tally:
            done = list(pool.map(_call, runs))
            return Tally(sum(tally.items for tally in done), sum(tally.produced for tally in done))

        return run

    return prepare_two


def _call(run: Run) -> Tally:
    return run()


def works() -> Iterator[tuple[str, Prepare]]:
    for prepare in (convert, convert_verified, convert_lazily, convert_lazily_verified, convert_lazily_owned):
        yield prepare.__name__, prepare
    for prepare in (numpy_all, numpy_batches, arrow_all, arrow_batches, arrow_views):
        yield prepare.__name__, prepare
    for prepare in (index, index_runs, check):
        yield prepare.__name__, prepare
    yield from (
        ("iterate", iterate),
        ("build_from_rows", build_from_rows),
        ("build_from_columns", build_from_columns),
    )
    for prepare in (combine, rebuild_columns):
        yield prepare.__name__, prepare
    for codec in (Codec.NONE, Codec.LZ4):
        yield f"accumulate_{codec.name.lower()}", accumulate(codec)
        yield f"accumulate_columns_{codec.name.lower()}", accumulate_columns(codec)
    for prepare in (convert, numpy_batches):
        yield f"{prepare.__name__}_two_threads", twice(prepare, threads=2)


if __name__ == "__main__":
    serve(dict(works()))
