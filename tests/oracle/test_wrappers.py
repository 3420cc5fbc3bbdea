"""What is in a wrapper of format v0 or v1, read by Kafka's own code and by ours."""

from __future__ import annotations

import struct
from base64 import b64decode
from random import Random

import pytest

import kafkafmt as kf
import reference as ref
from oracle.kafka import KafkaOracle, down_convert_request, validate_request
from reference import Row

pytestmark = [pytest.mark.oracle, pytest.mark.xdist_group("oracle")]

ROWS = [Row(number, 1_700_000_000_000 + number, b"key", b"value-%d" % number) for number in range(4)]
WRAPPERS_A_KIND = 150


def broken(random: Random, inner: bytes) -> bytes:
    """Messages with a byte flipped, cut short, or as they are."""
    kind = random.randrange(4)
    if kind == 0:
        return inner
    if kind == 1:
        return inner[: random.randrange(len(inner))]
    position = random.randrange(len(inner))
    return inner[:position] + bytes([inner[position] ^ 1 << random.randrange(8)]) + inner[position + 1 :]


def read(data: bytes) -> list[bytes | None] | None:
    """The values; None for an error."""
    try:
        return [record.value for record in kf.MemoryRecords(data).records()]
    except kf.KafkaFormatError:
        return None


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", [ref.GZIP, ref.SNAPPY, ref.LZ4])
def test_wrapper_when_a_byte_in_it_is_flipped_or_it_is_cut_then_read_or_refused_as_kafka_does(
    oracle: KafkaOracle, seed: int, magic: int, codec: int
) -> None:
    random = Random(f"{seed} {magic} {codec}")
    base = ROWS[0].offset if magic else 0
    inners = [broken(random, ref.messages(magic, ROWS, base)) for _ in range(WRAPPERS_A_KIND)]
    wrappers = [ref.wrapper(magic, codec, ROWS, inner=inner) for inner in inners]
    outcomes = set()
    for inner, data, answer in zip(
        inners, wrappers, oracle.ask([validate_request(data) for data in wrappers]), strict=True
    ):
        ours = read(data)
        theirs = None
        if "error" not in answer:
            theirs = [None if v is None else b64decode(v) for v in answer["values"]]
        if answer.get("error") == "OutOfMemoryError":  # Kafka allocates what the size of a message claims
            continue
        assert ours == theirs, (inner, answer)
        outcomes.add((ours is None, ours is not None and len(ours) < len(ROWS)))
    assert outcomes >= {(True, False), (False, True), (False, False)}


def test_xerial_header_when_kafka_reads_its_version_then_ours_does(oracle: KafkaOracle) -> None:
    rows = [Row(0, 1_700_000_000_000, None, bytes(100))]
    data = ref.compress(ref.SNAPPY, ref.records(rows, 0, rows[0].timestamp))
    for versions in ((0, 1), (1, 0), (0, 0), (-1, 1), (2, 2), (1, 1)):
        payload = data[:8] + struct.pack(">ii", *versions) + data[16:]
        batch = ref.batch(payload, 1, base_timestamp=rows[0].timestamp, attributes=ref.SNAPPY)
        (answer,) = oracle.ask([validate_request(batch)])
        assert (read(batch) is None) == ("error" in answer), (versions, answer)


def test_lz4_header_when_its_checksum_is_wrong_then_read_or_refused_as_kafka_does(
    oracle: KafkaOracle,
) -> None:
    for magic in (0, 1):
        payload = ref.compress(ref.LZ4, ref.messages(magic, ROWS), magic)
        for checksum in range(256):
            value = payload[:6] + bytes([checksum]) + payload[7:]
            data = ref.message(magic, ROWS[-1].offset, ROWS[-1].timestamp, None, value, attributes=ref.LZ4)
            (answer,) = oracle.ask([validate_request(data)])
            if magic == 0 or checksum in (
                payload[6],
                0x1A,
            ):  # both are read in either format: no client is lost
                assert read(data) is not None, checksum
            else:
                assert (read(data) is None) == ("error" in answer), (magic, checksum, answer)
            assert "error" not in answer or magic == 1


@pytest.mark.parametrize("to_magic", [0, 1])
@pytest.mark.parametrize("codec", [ref.NONE, ref.GZIP, ref.SNAPPY, ref.LZ4])
@pytest.mark.parametrize("magic", [1, 2])
def test_temporary_memory_when_converted_then_is_that_of_kafka(
    oracle: KafkaOracle, magic: int, codec: int, to_magic: int
) -> None:
    data = ref.batch_of(ROWS, codec=codec) if magic == 2 else _old(codec)
    (answer,) = oracle.ask([down_convert_request(data * 2, to_magic, 0)])
    found = kf.MemoryRecords(data * 2).down_convert(to_magic)
    assert found.stats.temporary_memory_bytes == answer["temporary_memory_bytes"]


def _old(codec: int) -> bytes:
    return ref.wrapper(1, codec, ROWS) if codec else ref.messages(1, ROWS)
