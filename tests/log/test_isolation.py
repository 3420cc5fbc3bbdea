"""Control records and transactions: what readers hand out by default, with `control`, and by isolation (KIP-98).

What Java's consumer got of real logs, in both isolations, is what is expected.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import kafkafmt as kf
from data.real_logs import LOGS, NAMES, expected
from kafkafmt.log import PartitionLog
from log.samples import batch, marker, name, offsets, transactional

CODECS = [kf.Codec.NONE, kf.Codec.LZ4]


def put(folder: Path, *segments: list[bytes]) -> PartitionLog:
    """A log of these segments, each named for its first offset."""
    folder.mkdir(exist_ok=True)
    for data in segments:
        (first, *_) = kf.MemoryRecords(data[0]).batches()
        (folder / name(first.base_offset)).write_bytes(b"".join(data))
    return PartitionLog(folder)


# Records and columns of batches


MIXED = [
    transactional(0, 7, 3),
    marker(3, 7, commit=False),
    batch(4, 2),
    transactional(6, 8),
    marker(7, 8, commit=True),
]
DATA, CONTROL = [0, 1, 2, 4, 5, 6], [3, 7]


def readers(records: kf.Records, **options: bool) -> dict[str, list[int]]:
    """The offsets that each reader of records hands out."""
    columns = ["offset", "value"]
    found = {
        "records": offsets(records.records(**options)),
        "to_numpy": records.to_numpy(columns, **options)["offset"].tolist(),
        "to_arrow": records.to_arrow(columns, **options)["offset"].to_pylist(),
        "to_arrow, views": records.to_arrow(columns, views=True, **options)["offset"].to_pylist(),
    }
    for chunk_bytes in (1, 1000):
        numpy = records.numpy_batches(columns, chunk_bytes=chunk_bytes, **options)
        arrow = records.arrow_batches(columns, chunk_bytes=chunk_bytes, **options)
        found[f"numpy_batches, {chunk_bytes}"] = [one for part in numpy for one in part["offset"].tolist()]
        found[f"arrow_batches, {chunk_bytes}"] = [one for part in arrow for one in part["offset"].to_pylist()]
    return found


@pytest.mark.parametrize("verify", [True, False])
def test_readers_when_there_are_control_batches_then_left_out_unless_asked_for(verify, tmp_path):
    data = b"".join(MIXED)
    (tmp_path / "segment").write_bytes(data)
    with kf.FileRecords(tmp_path / "segment") as file:
        for records in (kf.MemoryRecords(data), file):
            for reader, found in readers(records, verify=verify).items():
                assert found == DATA, reader
            for reader, found in readers(records, verify=verify, control=True).items():
                assert found == sorted(DATA + CONTROL), reader


def test_readers_when_there_is_nothing_but_control_batches_then_empty():
    records = kf.MemoryRecords(marker(0, 7, commit=True) + marker(1, 7, commit=False))
    for reader, found in readers(records).items():
        assert found == [], reader
    assert records.to_arrow().num_rows == 0


def test_record_when_of_a_control_batch_then_says_so():
    records = kf.MemoryRecords(b"".join(MIXED))
    found = {record.offset: record.is_control for record in records.records(control=True)}
    assert found == {offset: offset in CONTROL for offset in range(8)}
    assert not any(record.is_control for record in records.records())
    assert [record.is_control for one in records.batches() for record in one] == list(found.values())


@pytest.mark.parametrize("codec", CODECS)
def test_batch_when_damage_makes_it_look_like_a_control_batch_then_an_error_and_what_stands_before_it(codec):
    """The bit that says so is under the CRC: leaving the batch out unchecked would lose its records."""
    sound = batch(0, 3, codec=codec)
    hurt = bytearray(batch(3, 3, codec=codec))
    hurt[22] ^= 0x20
    records = kf.MemoryRecords(sound + bytes(hurt) + batch(6, codec=codec))
    got: list[int] = []
    with pytest.raises(kf.CorruptRecordError, match="CRC") as raised:
        got.extend(record.offset for record in records.records())  # a list keeps what came before the error
    assert got == [0, 1, 2]
    assert (raised.value.position, raised.value.base_offset) == (len(sound), 3)
    for read in (records.to_numpy, records.to_arrow):
        with pytest.raises(kf.CorruptRecordError, match="CRC"):
            read()
    chunks = records.numpy_batches(["offset"])
    assert next(chunks)["offset"].tolist() == [0, 1, 2]
    with pytest.raises(kf.CorruptRecordError, match="CRC"):
        next(chunks)


# Logs


@pytest.mark.parametrize("name", NAMES)
def test_log_when_a_broker_wrote_it_then_the_records_that_a_consumer_got_in_each_isolation(name):
    log = PartitionLog(LOGS / name)
    got = expected(name)
    assert offsets(log.records()) == [record.offset for record in got]
    committed = offsets(log.records(isolation="read_committed"))
    assert committed == [record.offset for record in got if record.committed]
    middle = got[len(got) // 2].offset
    assert offsets(log.records(middle, isolation="read_committed")) == [o for o in committed if o >= middle]
    assert offsets(log.records(None, middle, isolation="read_committed")) == [
        o for o in committed if o < middle
    ]


@pytest.mark.parametrize("keeps_files", [True, False])
def test_log_when_the_files_beside_its_segments_are_gone_then_committed_reads_are_the_same(
    keeps_files, tmp_path
):
    for source in sorted((LOGS / "transactions-0").iterdir()):
        if source.suffix == ".log" or keeps_files:
            (tmp_path / source.name).write_bytes(source.read_bytes())
    committed = [record.offset for record in expected("transactions-0") if record.committed]
    assert offsets(PartitionLog(tmp_path).records(isolation="read_committed")) == committed


def test_log_when_committed_then_aborted_batches_and_what_is_behind_an_open_transaction_are_left_out(
    tmp_path,
):
    log = put(
        tmp_path / "t-0",
        [batch(0), transactional(1, 1, 2), transactional(3, 2)],
        [marker(4, 1, commit=False), transactional(5, 1), marker(6, 2, commit=True)],
        [marker(7, 1, commit=True), batch(8), transactional(9, 3), batch(10)],
    )
    assert offsets(log.records()) == [0, 1, 2, 3, 5, 8, 9, 10]
    assert offsets(log.records(isolation="read_committed")) == [0, 3, 5, 8]
    assert offsets(log.records(isolation="read_committed", control=True)) == [0, 3, 4, 5, 6, 7, 8]
    assert offsets(log.records(4, 8, isolation="read_committed")) == [5]
    batches = [one.base_offset for one in log.batches(isolation="read_committed")]
    assert batches == [0, 3, 4, 5, 6, 7, 8]
    runs = [int(o) for run in log.runs(isolation="read_committed") for o in run.index["base_offset"]]
    assert runs == batches
    for run_bytes in (1, 200):  # a transaction that began in an earlier run
        runs = [
            int(o)
            for run in log.runs(isolation="read_committed", run_bytes=run_bytes)
            for o in run.index["base_offset"]
        ]
        assert runs == batches


@pytest.mark.parametrize("rolls", [False, True])
def test_log_when_a_marker_aborts_no_transaction_then_nothing_is_left_out_because_of_it(rolls, tmp_path):
    """Case 22: an abort marker for a producer that has no open transaction is ignored."""
    data = [
        marker(0, 7, commit=False),
        transactional(1, 7, 2),
        marker(3, 7, commit=True),
        marker(4, 7, commit=False),
        batch(5),
        transactional(6, 8),
        marker(7, 8, commit=False),
        marker(8, 8, commit=False),
        transactional(9, 8),
        marker(10, 8, commit=True),
        batch(11),
    ]
    log = put(tmp_path / "t-0", *([one] for one in data)) if rolls else put(tmp_path / "t-0", data)
    assert offsets(log.records(isolation="read_committed")) == [1, 2, 5, 9, 11]


def test_log_when_it_grows_while_committed_records_are_read_then_they_end_where_they_did(tmp_path):
    log = put(tmp_path / "t-0", [batch(0), transactional(1, 1), marker(2, 1, commit=True)])
    records = log.records(isolation="read_committed")
    assert next(records).offset == 0
    with (tmp_path / "t-0" / name(0)).open("ab") as file:
        file.write(transactional(3, 5) + batch(4))
    assert offsets(records) == [1]
    assert offsets(log.records(isolation="read_committed")) == [0, 1]


def test_log_when_damage_makes_a_batch_look_aborted_then_an_error(tmp_path):
    aborted = transactional(0, 1)
    hurt = bytearray(transactional(1, 3))
    hurt[50] ^= 3 ^ 1  # the last byte of the producer id
    log = put(
        tmp_path / "t-0",
        [aborted, bytes(hurt), marker(2, 1, commit=False), marker(3, 3, commit=True), batch(4)],
    )
    with pytest.raises(kf.CorruptRecordError, match="CRC") as raised:
        offsets(log.records(isolation="read_committed"))
    assert raised.value.position == len(aborted)


@pytest.mark.parametrize("is_open", [False, True])
@pytest.mark.parametrize("position", [16, -1])
def test_log_when_its_last_batch_is_damaged_then_committed_reads_raise_as_others(is_open, position, tmp_path):
    first = transactional(1, 7) if is_open else batch(1)
    hurt = bytearray(batch(2))
    hurt[position] ^= 1  # the magic, or a byte of the records
    log = put(tmp_path / "t-0", [batch(0), first, bytes(hurt)])
    for isolation in ("read_committed", "read_uncommitted"):
        with pytest.raises(kf.KafkaFormatError) as raised:
            offsets(log.records(isolation=isolation))
        assert raised.value.position == len(batch(0) + first)
        assert str(tmp_path) in str(raised.value)
    assert offsets(log.records(0, 1, isolation="read_committed")) == [0]


def test_log_when_its_last_batch_is_incomplete_then_committed_reads_end_before_it(tmp_path):
    log = put(tmp_path / "t-0", [batch(0), batch(1)[:-1]])
    assert offsets(log.records(isolation="read_committed")) == [0]
    (tmp_path / "t-0" / name(0)).write_bytes(batch(0) + batch(1))
    assert offsets(log.records(isolation="read_committed")) == [0, 1]


@pytest.mark.parametrize("wrong", ["committed", "READ_COMMITTED", "", None, 1, True])
def test_log_when_the_isolation_is_none_then_value_error_at_once(wrong, tmp_path):
    log = put(tmp_path / "t-0", [batch(0)])
    for read in (log.records, log.batches, log.runs):
        with pytest.raises(ValueError, match="isolation: expected read_uncommitted or read_committed, found"):
            list(read(isolation=wrong))


def test_log_when_empty_then_no_committed_records(tmp_path):
    (tmp_path / "t-0").mkdir()
    assert offsets(PartitionLog(tmp_path / "t-0").records(isolation="read_committed")) == []
