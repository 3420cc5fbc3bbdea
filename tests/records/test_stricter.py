"""What is refused that Kafka reads or builds: the rows of the table in docs/records.md, each run by kafkafmt.

Kafka's record code runs each of them, too, but for the malformed checkpoint: only a broker that starts reads that.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest

pytest.importorskip("py4j")

import kafkafmt as kf
import reference as ref
from kafkafmt.cli.sources import find_sources
from kafkafmt.jobs.verify import check_file
from kafkafmt.log import LogDirectory
from kafkafmt.server.produced_records import RefusedRecordsError, checked_run
from oracle.kafka import KafkaOracle, down_convert_request, validate_request
from records.samples import DAY
from records.test_bad_input import HEAD, KEY, NO_HEADERS, VALUE, framed
from reference import Row

PAGE = (Path(__file__).parents[2] / "docs" / "records.md").read_text()
SECTION = "## What is refused that Kafka reads\n"
ROWS = [Row(0, DAY, b"key", b"value"), Row(1, DAY, b"key", b"value")]
INNER = ref.messages(1, ROWS)


def of_format_2(message: bytes) -> bytes:
    """A message of v1 that says it is one of v2."""
    covered = b"\2" + message[17:]
    return message[:12] + struct.pack(">I", zlib.crc32(covered)) + covered


def of_v2(body: bytes) -> bytes:
    return ref.batch(framed(body), 1)


# What consumers of Kafka read, and what it is refused for.
READ: dict[str, tuple[bytes, str]] = {
    "A size below -1, for null, in a v2 record": (
        of_v2(HEAD + ref.varint(-2) + VALUE + NO_HEADERS),
        "key size: expected -1 to",
    ),
    "A size below -1, for null, in a v0 or v1 message": (
        ref.message(1, 0, DAY, None, b"value", key_size=-2),
        "key size: expected -1 to",
    ),
    "A varint with bits beyond its 32 or 64": (
        of_v2(b"\0\0" + b"\x80\x80\x80\x80\x10" + KEY + VALUE + NO_HEADERS),
        "varint too long",
    ),
    "Bytes after the value of a v0 or v1 message": (
        ref.message(1, 0, DAY, b"key", b"value", tail=b"tail"),
        "message size: expected",
    ),
    "A message in a wrapper whose format is above v1": (
        ref.wrapper(1, ref.GZIP, ROWS[:1], inner=of_format_2(ref.messages(1, ROWS[:1]))),
        "magic of an inner message: expected 0 or 1, found 2",
    ),
    "1 to 3 bytes after the last block of a snappy payload": (
        ref.batch(
            ref.compress(ref.SNAPPY, framed(HEAD + KEY + VALUE + NO_HEADERS)) + b"\0",
            1,
            attributes=ref.SNAPPY,
        ),
        "snappy: expected a block size, found 1 bytes",
    ),
    "Bytes after a gzip member that begin as one and are none": (
        ref.batch(
            ref.compress(ref.GZIP, framed(HEAD + KEY + VALUE + NO_HEADERS)) + b"\x1f\x8b\0none",
            1,
            attributes=ref.GZIP,
        ),
        "gzip: expected the end of a member",
    ),
    "Damage or surplus records in lz4 after a block of 0 bytes or after a frame": (
        ref.batch(
            ref.compress(ref.LZ4, framed(HEAD + KEY + VALUE + NO_HEADERS))[: -len(ref.LZ4_END_MARK)]
            + ref.LZ4_EMPTY_BLOCK,
            1,
            attributes=ref.LZ4,
        ),
        "lz4: expected the end of a frame",
    ),
}
SHORT = ref.batch(b"", 0, length=32)[:40]
DROPPED = ref.message(1, 0, DAY, b"key", b"value", value_size=99)
NEGATIVE = ref.batch_of([Row(-1, DAY, b"key", b"value")], codec=ref.GZIP)
PART_OF_A_MESSAGE = "A partial message at the end of a wrapper"
SHORT_INCOMPLETE = "An incomplete batch with a size below that of the header of its format"
CONVERTED_DAMAGE = "A damaged message that Kafka copies or drops unread while it converts"
NEGATIVE_OFFSET = "A record below offset 0 in a compressed batch that is converted"
MALFORMED_CHECKPOINT = "A malformed `log-start-offset-checkpoint`"
APPEND_TIME_IN_V0 = "`RecordBatchBuilder` of v0 with LOG_APPEND_TIME"
PRODUCER_STATE_IN_V1 = "`RecordBatchBuilder` of v0 or v1 with a producer epoch or a sequence"


def refuse_part_of_a_message(folder: Path) -> None:
    data = ref.wrapper(1, ref.GZIP, ROWS, inner=INNER + INNER[:20])
    (batch,) = kf.MemoryRecords(data).batches()
    with pytest.raises(kf.InvalidRecordError, match="message in a wrapper ends early"):
        batch.ensure_valid()
    assert len(list(batch)) == 2
    (folder / "t-0").mkdir()
    path = folder / "t-0" / f"{0:020d}.log"
    path.write_bytes(data)
    (source,) = find_sources([str(path)])
    check = check_file(source)
    assert check.status == "damaged"
    assert "message in a wrapper ends early" in check.damage[0]["message"]
    with pytest.raises(RefusedRecordsError, match="message in a wrapper ends early"):
        checked_run(data, 2, 1 << 20)


def refuse_short_incomplete(_: Path) -> None:
    with pytest.raises(
        kf.CorruptRecordError, match="batch size too small: expected at least 61 bytes, found 44"
    ):
        list(kf.MemoryRecords(SHORT).batches())


def refuse_converted_damage(_: Path) -> None:
    with pytest.raises(kf.InvalidRecordError, match="value size"):
        kf.MemoryRecords(DROPPED).down_convert(0, first_offset=1)


def refuse_negative_offset(_: Path) -> None:
    with pytest.raises(kf.InvalidRecordError, match="expected 0 or more, found -1"):
        kf.MemoryRecords(NEGATIVE).down_convert(1)


def refuse_malformed_checkpoint(folder: Path) -> None:
    (folder / "t-0").mkdir()
    (folder / "t-0" / f"{0:020d}.log").write_bytes(INNER)
    (folder / "log-start-offset-checkpoint").write_text("no checkpoint\n")
    with pytest.raises(kf.KafkaFormatError, match="log-start-offset-checkpoint"):
        list(LogDirectory(folder).partition(("t", 0)).records())


def refuse_append_time_in_v0(_: Path) -> None:
    with pytest.raises(ValueError, match="v0 has no timestamps"):
        kf.RecordBatchBuilder(0, timestamp_type=kf.TimestampType.LOG_APPEND_TIME, log_append_time=DAY)


def refuse_producer_state_in_v1(_: Path) -> None:
    for magic, state in product((0, 1), ({"producer_epoch": 0}, {"base_sequence": 0})):
        with pytest.raises(ValueError, match="v2"):
            kf.RecordBatchBuilder(magic, **state)


OTHERS: dict[str, Callable[[Path], None]] = {
    PART_OF_A_MESSAGE: refuse_part_of_a_message,
    SHORT_INCOMPLETE: refuse_short_incomplete,
    CONVERTED_DAMAGE: refuse_converted_damage,
    NEGATIVE_OFFSET: refuse_negative_offset,
    MALFORMED_CHECKPOINT: refuse_malformed_checkpoint,
    APPEND_TIME_IN_V0: refuse_append_time_in_v0,
    PRODUCER_STATE_IN_V1: refuse_producer_state_in_v1,
}


@pytest.mark.parametrize("row", READ)
def test_records_when_they_are_what_is_refused_on_purpose_then_invalid_record(row: str) -> None:
    data, message = READ[row]
    with pytest.raises(kf.KafkaFormatError, match=message):
        list(kf.MemoryRecords(data).records())


@pytest.mark.parametrize("row", OTHERS)
def test_other_things_when_they_are_what_is_refused_on_purpose_then_refused(row: str, tmp_path: Path) -> None:
    OTHERS[row](tmp_path)


def test_table_when_read_then_has_the_rows_that_are_tested() -> None:
    section = PAGE[PAGE.index(SECTION) + len(SECTION) :].split("\n## ")[0]
    rows = re.findall(r"^\| (.+?) \|", section, re.MULTILINE)[1:]
    assert rows == [*READ, *OTHERS]


@pytest.mark.oracle
@pytest.mark.xdist_group("oracle")
def test_kafka_when_it_reads_what_is_refused_on_purpose_then_takes_it(oracle: KafkaOracle) -> None:
    part = ref.wrapper(1, ref.GZIP, ROWS, inner=INNER + INNER[:20])
    requests = {row: validate_request(data) for row, (data, _) in READ.items()}
    requests[PART_OF_A_MESSAGE] = validate_request(part)
    requests[SHORT_INCOMPLETE] = validate_request(SHORT)
    answers = dict(zip(requests, oracle.ask(list(requests.values())), strict=True))
    assert {row: len(answer.get("values", [])) for row, answer in answers.items()} == {
        row: {PART_OF_A_MESSAGE: 2, SHORT_INCOMPLETE: 0}.get(row, 1) for row in requests
    }, answers


@pytest.mark.oracle
@pytest.mark.xdist_group("oracle")
def test_kafka_when_it_converts_what_is_refused_on_purpose_then_converts_it(oracle: KafkaOracle) -> None:
    requests = [down_convert_request(DROPPED, 0, 1), down_convert_request(NEGATIVE, 1, 0)]
    assert [answer["records_converted"] for answer in oracle.ask(requests)] == [0, 1]


@pytest.mark.oracle
@pytest.mark.xdist_group("oracle")
def test_kafka_when_it_builds_v0_with_log_append_time_then_ignores_the_time(oracle: KafkaOracle) -> None:
    record = {"offset": 0, "timestamp": DAY, "key": b"key", "value": b"value", "headers": []}
    plain = {"magic": 0, "records": [record]}
    append_time = {**plain, "timestamp_type": int(kf.TimestampType.LOG_APPEND_TIME), "log_append_time": DAY}
    assert oracle.build(append_time) == oracle.build(plain)


@pytest.mark.oracle
@pytest.mark.xdist_group("oracle")
@pytest.mark.parametrize("magic", [0, 1])
def test_kafka_when_it_builds_v0_or_v1_with_an_epoch_and_a_sequence_then_ignores_them(
    oracle: KafkaOracle, magic: int
) -> None:
    record = {"offset": 0, "timestamp": DAY, "key": b"key", "value": b"value", "headers": []}
    plain = {"magic": magic, "records": [record]}
    assert oracle.build({**plain, "producer_epoch": 0, "base_sequence": 0}) == oracle.build(plain)
