"""kafkafmt compared with Kafka's own record code on any bytes: decoding, checks, and conversion down.

`test_differential.py` compares batches that Kafka wrote, and some mutated ones. `fuzz/differential.py` compares mutated
ones for as long as it runs. A difference is an AssertionError, unless `differences.py` finds a row of the documentation
for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import kafkafmt as kf
from oracle import differences as documented
from oracle.kafka import decode_request, down_convert_request
from reference import as_int64

HEADER_FIELDS = (
    *("magic", "base_offset", "last_offset", "next_offset", "size_in_bytes", "codec", "crc"),
    *("timestamp_type", "max_timestamp", "delete_horizon_ms", "partition_leader_epoch"),
    *("producer_id", "producer_epoch", "base_sequence", "last_sequence", "is_transactional", "is_control"),
)
RECORD_FIELDS = ("offset", "timestamp", "timestamp_type", "sequence", "size_in_bytes")
DEPENDS_ON_COMPRESSOR = ("crc", "size_in_bytes")
Batch = dict[str, Any]
_Result = TypeVar("_Result")


class Comparison:
    """A record set, read and converted by both. differences: the documented ones that were seen."""

    def __init__(self, data: bytes, to_magic: int, first_offset: int = 0) -> None:
        self.data, self.to_magic, self.first_offset = data, to_magic, first_offset
        self.differences: set[str] = set()

    def requests(self) -> list[dict[str, Any]]:
        """Return the requests to Kafka."""
        return [
            decode_request(self.data),
            down_convert_request(self.data, self.to_magic, self.first_offset),
        ]

    def check(self, answers: Sequence[dict[str, Any]]) -> None:
        """Raise AssertionError if the answers differ from what kafkafmt does."""
        decoded, converted = answers
        self.differences |= compare_decoding(self.data, decoded)
        self.differences |= compare_down_conversion(
            self.data, self.to_magic, self.first_offset, converted, self.differences
        )


def compare_decoding(data: bytes, answer: dict[str, Any], *, ignored: Sequence[str] = ()) -> set[str]:
    """Compare the batches of a record set with those of an answer to `decode_request`.

    Returns the documented differences. ignored: fields of batches that are not compared.
    """
    batches, error = _until_error(kf.MemoryRecords(data))
    theirs, differences = answer["batches"], set[str]()
    end = batches[-1].position + batches[-1].size_in_bytes if batches else 0
    if error is None:
        assert len(theirs) == len(batches), f"Kafka finds {len(theirs)} batches, kafkafmt {len(batches)}"
        if "error" in answer:
            row = documented.unfinished(data[end:])
            assert row, f"Kafka refuses what follows {end}: {answer['message']}"
            differences.add(row)
    elif len(batches) < len(theirs):
        # kafkafmt checks a length as soon as it knows the format, Kafka when it reads the batch.
        refused = theirs[len(batches)]
        assert "error" in refused or not refused["valid"], f"refused, {error}: Kafka reads {refused}"
    elif "error" not in answer:
        row = documented.refused_end(data[end:])
        assert row, f"refused, {error}: Kafka finds the end"
        differences.add(row)
    for batch, of_kafka in zip(batches, theirs, strict=False):
        try:
            differences |= _compare_batch(batch, of_kafka, ignored)
        except AssertionError as difference:
            raise AssertionError(f"batch at {batch.position}: {difference}") from difference
    return differences


def _until_error(records: kf.Records) -> tuple[list[kf.RecordBatch], kf.KafkaFormatError | None]:
    batches = []
    try:
        for batch in records.batches():
            batches.append(batch)  # noqa: PERF402
    except kf.KafkaFormatError as error:
        return batches, error
    return batches, None


def _outcome(action: Callable[[], _Result]) -> _Result | kf.KafkaFormatError:
    try:
        return action()
    except kf.KafkaFormatError as error:
        return error


def _compare_batch(batch: kf.RecordBatch, of_kafka: Batch, ignored: Sequence[str]) -> set[str]:
    records = _outcome(lambda: list(batch.records(verify=False)))
    if isinstance(records, list) and "error" not in of_kafka and len(records) > len(of_kafka["records"]):
        row = documented.more(bytes(batch.buffer))
        assert row, f"Kafka reads {len(of_kafka['records'])} records, kafkafmt {len(records)}"
        return {row}
    differences = _compare_header(
        batch, of_kafka, ignored, is_refused=isinstance(records, kf.KafkaFormatError)
    )
    holds = _outcome(lambda: batch.run.ensure_valid(batch.number, batch.number + 1)) is None
    if "crc_holds" in of_kafka:
        assert holds == of_kafka["crc_holds"], f"CRC: Kafka finds {of_kafka['crc_holds']}, kafkafmt {holds}"
    if isinstance(records, kf.KafkaFormatError):
        if "error" in of_kafka:
            return differences
        row = documented.refused(bytes(batch.buffer))
        assert row, f"refused, {records}: Kafka reads it"
        return differences | {row}
    if "error" in of_kafka:
        if "codec" not in of_kafka and isinstance(_outcome(lambda: batch.codec), kf.KafkaFormatError):
            return differences  # the codec is unknown to both; kafkafmt does not need it for a batch without records
        row = documented.read(bytes(batch.buffer), of_kafka["error"], of_kafka["message"])
        assert row, f"Kafka refuses it, {of_kafka['error']}: {of_kafka['message']}: kafkafmt reads it"
        return differences | {row}
    count = len(records) if of_kafka["count"] is None else of_kafka["count"]  # Kafka does not count a wrapper
    assert batch.count == count, f"Kafka counts {count} records, kafkafmt {batch.count}"
    assert len(records) == len(of_kafka["records"]), (
        f"Kafka reads {len(of_kafka['records'])} records, kafkafmt {len(records)}"
    )
    for number, (ours, theirs) in enumerate(zip(records, of_kafka["records"], strict=True)):
        delta = as_int64(ours.offset - batch.base_offset)
        differences |= _compare_fields(rendered_record(ours), theirs, batch, number, delta)
    return differences | _compare_validity(batch, of_kafka)


def _compare_header(
    batch: kf.RecordBatch, of_kafka: Batch, ignored: Sequence[str], *, is_refused: bool
) -> set[str]:
    """is_refused: whether the records are, so that fields that need them have no value."""
    ours: Batch = {}
    for name in (*HEADER_FIELDS, *(["base_timestamp"] if batch.magic == 2 else [])):
        value = _outcome(lambda name=name: getattr(batch, name))
        if (
            name in of_kafka
            and name not in ignored
            and not (is_refused and isinstance(value, kf.KafkaFormatError))
        ):
            ours[name] = value
    delta = as_int64(batch.last_offset - batch.base_offset) if batch.magic == 2 else 0
    return _compare_fields(ours, of_kafka, batch, None, delta)


def _compare_fields(
    ours: Batch, theirs: Batch, batch: kf.RecordBatch, number: int | None, offset_delta: int
) -> set[str]:
    """number: of the record, or None if the fields are those of the batch."""
    differences = set()
    for name, value in ours.items():
        if value != theirs[name]:
            row = documented.otherwise(
                name, value, theirs[name], bytes(batch.buffer), number=number, offset_delta=offset_delta
            )
            assert row, f"{name}: Kafka finds {theirs[name]!r}, kafkafmt {value!r}"
            differences.add(row)
    return differences


def _compare_validity(batch: kf.RecordBatch, of_kafka: Batch) -> set[str]:
    """Compare the checks of a batch whose records both can read: its CRC, and those of messages in a wrapper."""
    error = _outcome(batch.ensure_valid)
    checked = _outcome(lambda: list(batch))
    assert isinstance(checked, list) == of_kafka["valid"], (
        f"Kafka: valid {of_kafka['valid']}, kafkafmt: {checked}"
    )
    if isinstance(error, kf.KafkaFormatError) and of_kafka["valid"]:
        assert isinstance(error, kf.InvalidRecordError), error
        assert "message in a wrapper ends early" in error.message, error
        return {documented.PART_OF_A_MESSAGE}
    assert (error is None) == of_kafka["valid"], f"Kafka: valid {of_kafka['valid']}, kafkafmt: {error}"
    return set()


def rendered_record(record: Any) -> Batch:
    """Return a record as the oracle describes one."""
    fields = {name: getattr(record, name) for name in RECORD_FIELDS}
    return fields | {"key": record.key, "value": record.value, "headers": record.headers}


def compare_down_conversion(
    data: bytes, to_magic: int, first_offset: int, answer: dict[str, Any], differences: set[str]
) -> set[str]:
    """Compare a conversion with the answer to `down_convert_request`.

    differences: the documented ones that decoding has. Returns those of the conversion.
    """
    if documented.MORE_LZ4 in differences:
        return set()
    records = kf.MemoryRecords(data)
    found = _outcome(lambda: records.down_convert(to_magic, first_offset, verify=False))
    _check_verified_conversion(records, found, _outcome(lambda: records.down_convert(to_magic, first_offset)))
    if isinstance(found, kf.KafkaFormatError):
        if "bytes" not in answer or differences:
            return set()
        row = documented.refused_conversion(data)
        assert row, f"conversion refused, {found}: Kafka converts it"
        return {row}
    if "bytes" not in answer:
        row = documented.converted(data, answer["message"])
        assert row or differences, f"Kafka refuses to convert, {answer['error']}: {answer['message']}"
        return {row} if row else set()
    assert found.stats.records_converted == answer["records_converted"]
    assert found.stats.temporary_memory_bytes == answer["temporary_memory_bytes"]
    converted = bytes(found.records.buffer)
    if not any(batch.get("codec") for batch in answer["batches"]):
        assert converted == answer["bytes"], (
            f"Kafka converts to {answer['bytes']!r}, kafkafmt to {converted!r}"
        )
        return set()
    return compare_decoding(converted, answer, ignored=DEPENDS_ON_COMPRESSOR)


def _is_valid(batch: kf.RecordBatch) -> bool:
    """Return whether a batch is valid. A codec that its format has not is checked by neither."""
    try:
        return batch.is_valid()
    except kf.UnsupportedCompressionTypeError:
        return False


def _check_verified_conversion(
    records: kf.MemoryRecords,
    found: kf.ConvertedRecords | kf.KafkaFormatError,
    verified: kf.ConvertedRecords | kf.KafkaFormatError,
) -> None:
    """With `verify` the result is the same if all CRCs match. Otherwise only Kafka converts."""
    batches, error = _until_error(records)
    holds = error is None and all(
        _outcome(lambda batch=batch: batch.run.ensure_valid(batch.number, batch.number + 1)) is None
        for batch in batches
    )
    if isinstance(found, kf.ConvertedRecords) and isinstance(verified, kf.ConvertedRecords):
        assert holds, "CRCs do not hold, but it was converted"
        assert bytes(found.records.buffer) == bytes(verified.records.buffer)
    elif isinstance(found, kf.ConvertedRecords):
        assert not holds or not all(map(_is_valid, batches)), f"CRCs hold, but refused: {verified}"
    else:
        assert isinstance(verified, kf.KafkaFormatError), f"refused only without verify: {found}"
