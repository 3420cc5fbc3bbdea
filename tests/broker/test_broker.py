"""What kafkafmt writes, taken by a real broker: batches by produce requests, segments from its log folder.

The segments are the logs in tests/data, written anew by kafkafmt (copied, or converted up or down) and put into the
folder of a stopped broker. Once it is started, an ordinary consumer must get from it what it got from the original,
and the broker must find nothing to repair.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from kafka.protocol.consumer import ListOffsetsRequest

import kafkafmt as kf
from broker.broker import Broker
from broker.client import JavaClient, Message, Received
from broker.produce import produce
from data.real_logs import LOGS, ExpectedRecord, expected
from kafkafmt.log import LogDirectory, PartitionLogWriter
from oracle.kafka import KafkaOracle

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.xdist_group("oracle")]

LIST_OFFSETS_VERSION = 1
NOW_MS = 1_700_000_000_000
OUT_OF_ORDER_SEQUENCE_NUMBER = 45
SEGMENT_BYTES = 8_000
INDEX_INTERVAL_BYTES = 1_000


@dataclass(frozen=True)
class Rewritten:
    """A log of tests/data, written by kafkafmt in format `magic` (None: as it is)."""

    source: str
    magic: int | None = None

    @property
    def topic(self) -> str:
        return f"{self.source}.{'copied' if self.magic is None else f'to-v{self.magic}'}"

    @property
    def keeps_all(self) -> bool:
        """Headers, timestamps and transactions are kept."""
        return self.magic in (None, 2)


COPIED = (
    "transactions-0",
    "compacted-0",
    "segments-0",
    "single-0",
    "append-time-0",
    "time-travel-0",
    "headers-0",
)
REWRITTEN = [
    *(Rewritten(source) for source in (*COPIED, "legacy-v1-0", "upgraded-0")),
    *(Rewritten(source, 2) for source in ("legacy-v0-0", "legacy-v1-0", "upgraded-0")),
    *(Rewritten(source, 1) for source in ("segments-0", "sizes-0", "snappy-0", "gzip-0", "lz4-0", "nulls-0")),
    *(Rewritten(source, 0) for source in ("segments-0", "gzip-0", "snappy-0", "lz4-0")),
]


@pytest.fixture(scope="module")
def client(oracle: KafkaOracle, any_broker: Broker) -> Iterator[JavaClient]:
    with JavaClient(oracle.jvm, any_broker) as client:
        yield client


# Batches, by produce requests


def a_batch(codec: kf.Codec = kf.Codec.NONE, *, count: int = 50, **options: int) -> bytes:
    builder = kf.RecordBatchBuilder(codec=codec, **options)
    for number in range(count):
        headers = [("n", b"%d" % number), ("null", None), ("n", b"")] if number % 3 == 0 else []
        key = (None, b"", b"key-%d" % number)[number % 3]
        builder.append(
            NOW_MS + 7 * (number % 5), key, b"value %d " % number * 9 if number % 7 else None, headers
        )
    return builder.build()


def fields(records: Iterable[object]) -> list[tuple[object, ...]]:
    names = ("timestamp", "key", "value", "headers")
    return [tuple(getattr(record, name) for name in names) for record in records]


@pytest.mark.parametrize("codec", list(kf.Codec), ids=lambda codec: codec.name.lower())
def test_produce_when_kafkafmt_built_the_batch_then_a_consumer_reads_it(
    any_broker: Broker, client: JavaClient, codec: kf.Codec
) -> None:
    topic = f"built-{codec.name.lower()}"
    any_broker.create_topic(topic)
    sent = [a_batch(codec), a_batch(codec, count=1), a_batch(codec, count=500)]
    assert [produce(any_broker, topic, batch) for batch in sent] == [0, 0, 0]
    received = client.consume(topic)
    assert [record.offset for record in received] == list(range(551))
    assert fields(received) == fields(kf.MemoryRecords(b"".join(sent)).records())


def test_produce_when_the_topic_recompresses_then_the_broker_reads_each_record(
    any_broker: Broker, client: JavaClient
) -> None:
    any_broker.create_topic("recompressed", config={"compression.type": "gzip"})
    sent = [a_batch(codec) for codec in kf.Codec]
    assert [produce(any_broker, "recompressed", batch) for batch in sent] == [0] * len(sent)
    assert fields(client.consume("recompressed")) == fields(kf.MemoryRecords(b"".join(sent)).records())


def test_produce_when_batches_are_idempotent_then_the_broker_follows_their_sequences(
    any_broker: Broker,
) -> None:
    any_broker.create_topic("built-idempotent")
    first, second = (a_batch(producer_id=4000, producer_epoch=0, base_sequence=n) for n in (0, 50))
    gap = a_batch(producer_id=4000, producer_epoch=0, base_sequence=150)
    codes = [produce(any_broker, "built-idempotent", batch) for batch in (first, second, gap)]
    assert codes == [0, 0, OUT_OF_ORDER_SEQUENCE_NUMBER]


@pytest.mark.parametrize("codec", [kf.Codec.NONE, kf.Codec.LZ4], ids=lambda codec: codec.name.lower())
def test_produce_when_a_batch_was_split_then_the_broker_takes_every_part(
    any_broker: Broker, client: JavaClient, codec: kf.Codec
) -> None:
    topic = f"split-{codec.name.lower()}"
    any_broker.create_topic(topic)
    whole = a_batch(codec, count=300, producer_id=4001, producer_epoch=0, base_sequence=0)
    (batch,) = kf.MemoryRecords(whole).batches()
    parts = kf.split_batch(batch, 4_000)
    assert len(parts) > 3
    assert {produce(any_broker, topic, bytes(part.buffer)) for part in parts} == {0}
    assert fields(client.consume(topic)) == fields(batch)


def test_produce_when_the_crc_is_wrong_then_the_broker_refuses_what_kafkafmt_refuses(
    any_broker: Broker,
) -> None:
    any_broker.create_topic("built-damaged")
    damaged = bytearray(a_batch())
    damaged[-1] ^= 1
    (batch,) = kf.MemoryRecords(damaged).batches()
    assert not batch.is_valid()
    assert produce(any_broker, "built-damaged", bytes(damaged)) != 0


# Segments, from the log folder


@pytest.mark.parametrize("codec", list(kf.Codec), ids=lambda codec: codec.name.lower())
def test_read_when_a_broker_wrote_the_segment_then_gives_what_its_consumer_got(
    any_broker: Broker, client: JavaClient, codec: kf.Codec
) -> None:
    topic = f"theirs-{codec.name.lower()}"
    any_broker.create_topic(topic)
    sent = list(kf.MemoryRecords(a_batch(count=100)).records())
    with client.producer(codec.name.lower(), transactional_id=topic) as producer:
        for end in (producer.abortTransaction, producer.commitTransaction):
            producer.beginTransaction()
            client.send(producer, topic, (Message(r.timestamp, r.key, r.value, r.headers) for r in sent))
            end()
    log = LogDirectory(any_broker.log_dir).partition((topic, 0))
    read = [record for batch in log.batches() if not batch.is_control for record in batch]
    received = client.consume(topic)
    assert fields(read) == fields(received) == fields(sent * 2)
    assert [record.offset for record in read] == [record.offset for record in received]
    assert [abort.first_offset for abort in log.scan_aborted_transactions()] == [0]


def rewrite(log: Rewritten, folder: Path) -> None:
    """Write a log of tests/data into `folder`, with small segments and dense indexes."""
    topic, _, number = log.source.rpartition("-")
    source = LogDirectory(LOGS).partition((topic, int(number)))
    with PartitionLogWriter(
        folder, segment_bytes=SEGMENT_BYTES, index_interval_bytes=INDEX_INTERVAL_BYTES
    ) as writer:
        if log.keeps_all:
            writer.add_aborted_transactions(source.aborted_transactions())
        for segment in source.segments():
            with segment.open() as records:
                for batch in converted(records, log.magic).batches():
                    writer.append(batch.buffer)


def converted(records: kf.Records, to_magic: int | None) -> kf.Records:
    return records if to_magic is None else records.down_convert(to_magic, zstd_fallback=kf.Codec.LZ4).records


@pytest.fixture(scope="module")
def reading_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker whose topics were written by kafkafmt while it was down."""
    with Broker(tmp_path_factory.mktemp("reading-broker")) as broker:
        for log in REWRITTEN:
            broker.create_topic(log.topic)
        broker.stop()
        for log in REWRITTEN:
            folder = broker.log_dir / f"{log.topic}-0"
            for file in folder.glob("0*"):
                file.unlink()
            rewrite(log, folder)
        broker.log_file.unlink()
        broker.start()
        yield broker


@pytest.fixture(scope="module")
def reader(oracle: KafkaOracle, reading_broker: Broker) -> Iterator[JavaClient]:
    with JavaClient(oracle.jvm, reading_broker) as reader:
        yield reader


def delivered(log: Rewritten, records: Iterable[Received | ExpectedRecord]) -> list[tuple[object, ...]]:
    """What the target format keeps of records."""
    return [
        (
            record.offset,
            record.key,
            record.value,
            record.headers if log.keeps_all else [],
            -1 if log.magic == 0 else record.timestamp,
        )
        for record in records
    ]


@pytest.mark.parametrize("log", REWRITTEN, ids=lambda log: log.topic)
def test_consume_when_kafkafmt_wrote_the_segments_then_gives_what_the_source_gave(
    reader: JavaClient, log: Rewritten
) -> None:
    assert delivered(log, reader.consume(log.topic)) == delivered(log, expected(log.source))


@pytest.mark.parametrize("log", REWRITTEN, ids=lambda log: log.topic)
def test_consume_when_the_reader_wants_committed_records_then_the_aborted_are_left_out(
    reader: JavaClient, log: Rewritten
) -> None:
    wanted = [record for record in expected(log.source) if record.committed or not log.keeps_all]
    received = reader.consume(log.topic, isolation="read_committed")
    assert delivered(log, received) == delivered(log, wanted)


@pytest.mark.parametrize("log", REWRITTEN, ids=lambda log: log.topic)
def test_consume_when_it_starts_in_the_middle_then_begins_at_that_offset(
    reader: JavaClient, log: Rewritten
) -> None:
    offsets = [record.offset for record in expected(log.source)]
    for start in (offsets[len(offsets) // 3], offsets[-1]):
        received = reader.consume(log.topic, start=start)
        assert [record.offset for record in received] == offsets[offsets.index(start) :]


def offset_for_time(broker: Broker, topic: str, timestamp: int) -> int:
    """The first record at or after a time, as the broker finds it through its indexes; -1 for none."""
    asked = ListOffsetsRequest.ListOffsetsTopic
    partition = asked.ListOffsetsPartition(partition_index=0, timestamp=timestamp)
    request = ListOffsetsRequest(replica_id=-1, topics=[asked(name=topic, partitions=[partition])])
    found = broker.request(request, LIST_OFFSETS_VERSION).topics[0].partitions[0]
    assert found.error_code == 0
    return int(found.offset)


@pytest.mark.parametrize("source", ["segments-0", "single-0", "transactions-0", "time-travel-0"])
def test_offset_for_time_when_kafkafmt_wrote_the_index_then_is_the_first_record_of_that_time(
    reading_broker: Broker, source: str
) -> None:
    topic, _, number = source.rpartition("-")
    log = LogDirectory(LOGS).partition((topic, int(number)))
    times = [record.timestamp for record in expected(source)]
    for timestamp in (min(times), times[len(times) // 2], times[-1], max(times), max(times) + 10**12):
        found = log.find_timestamp(timestamp)
        theirs = offset_for_time(reading_broker, Rewritten(source).topic, timestamp)
        assert theirs == (found.offset if found else -1), timestamp


METADATA_LOG = "__cluster_metadata"  # the broker's own
REPAIRS = (" ERROR ", "orrupt", "recovering segment", "Recovering unflushed", "Truncating")


def test_start_when_kafkafmt_wrote_the_segments_then_the_broker_repairs_nothing(
    reading_broker: Broker,
) -> None:
    told = [line for line in reading_broker.log_file.read_text().splitlines() if METADATA_LOG not in line]
    assert any("Loading producer state" in line for line in told)  # the broker told of the logs it loaded
    assert [line for line in told if any(repair in line for repair in REPAIRS)] == []


# Segments and indexes, by the broker's own tool

COMPLAINTS = (
    "ismatch",
    "isvalid: false",
    "not found",
    "out of order",
    "Exception",
    "does not",
    "rror",
    "ount not",
)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folders that kafkafmt writes, untouched by a broker."""
    root = tmp_path_factory.mktemp("written")
    for log in REWRITTEN:
        rewrite(log, root / f"{log.topic}-0")
    return root


def test_dump_log_when_kafkafmt_wrote_the_segments_then_finds_every_record_valid(
    broker: Broker, written: Path
) -> None:
    segments = sorted(written.glob("*/*.log"))
    printed = broker.dump_log(segments, "--deep-iteration", "--print-data-log")
    assert [line for line in printed.splitlines() if any(c in line for c in COMPLAINTS)] == []
    records = sum(1 for path in segments for batch in batches_of(path) for _ in batch)
    assert sum(line.startswith("| offset: ") for line in printed.splitlines()) == records


def batches_of(path: Path) -> Iterator[kf.RecordBatch]:
    with kf.FileRecords(path) as records:
        yield from records.batches()


@pytest.mark.parametrize("option", ["--deep-iteration", "--index-sanity-check", "--verify-index-only"])
def test_dump_log_when_kafkafmt_wrote_the_indexes_then_has_no_complaint(
    broker: Broker, written: Path, option: str
) -> None:
    indexes = [path for suffix in ("index", "timeindex") for path in sorted(written.glob(f"*/*.{suffix}"))]
    printed = broker.dump_log(indexes, option).splitlines()
    assert sum(line.startswith("Dumping ") for line in printed) == len(indexes)
    assert [line for line in printed if any(complaint in line for complaint in COMPLAINTS)] == []
    if option == "--index-sanity-check":
        fine = ("passed sanity check.", "is empty.")
        assert sum(line.endswith(fine) for line in printed) == len(indexes)


def test_dump_log_when_kafkafmt_wrote_the_transaction_index_then_lists_every_abort(
    broker: Broker, written: Path
) -> None:
    indexes = sorted(written.glob("*/*.txnindex"))
    listed = [line for line in broker.dump_log(indexes).splitlines() if line.startswith("version: ")]
    source = LogDirectory(LOGS)
    wanted = [
        abort.first_offset
        for log in REWRITTEN
        if log.keeps_all
        for abort in source.partition((log.source.rpartition("-")[0], 0)).aborted_transactions()
    ]
    assert len(listed) == len(wanted) > 0


def test_dump_log_when_an_index_is_wrong_then_complains(
    broker: Broker, written: Path, tmp_path: Path
) -> None:
    """The checks above would notice."""
    original = next(
        path for path in sorted((written / "segments-0.copied-0").glob("*.index")) if path.stat().st_size
    )
    for path in original.parent.glob(f"{original.stem}.*"):
        shutil.copy(path, tmp_path)
    wrong = bytearray(original.read_bytes())
    wrong[3] ^= 1  # the first entry's relative offset
    (tmp_path / original.name).write_bytes(wrong)
    printed = broker.dump_log(tmp_path / original.name)
    assert any(complaint in printed for complaint in COMPLAINTS)
