"""Two tables of docs/records.md: what Kafka refuses, or reads in another way. Each row has an example.

`records/test_stricter.py` has the table of what kafkafmt refuses.
"""

from __future__ import annotations

import re
import struct
from pathlib import Path

import lz4.frame
import pytest

import reference as ref
from oracle import differences
from oracle.comparison import Comparison
from oracle.kafka import KafkaOracle
from records.samples import DAY, ROWS, WITH_HEADERS
from reference import Row

PAGE = (Path(__file__).parents[2] / "docs" / "records.md").read_text()
SECTIONS = ("## What is read that Kafka refuses\n", "## What is read in another way\n")
MESSAGES = ref.messages(1, ROWS)
PART_OF_1_GIB = struct.pack(">qi", 13, 1 << 30)
TWO_BLOCKS = ref.records([Row(0, DAY, None, bytes(100_000))], 0, DAY)
LINKED = lz4.frame.compress(TWO_BLOCKS, block_linked=True)
RECORD = ref.record(0, 0, None, b"value")
LZ4_HEADER = ref.compress(ref.LZ4, b"")[:7]
WITH_EMPTY_BLOCK = LZ4_HEADER + ref.LZ4_EMPTY_BLOCK + ref.compress(ref.LZ4, RECORD)[7:]
OF_V0 = ref.compress(ref.LZ4, ref.records([Row(0, DAY, None, b"value")], 0, DAY), magic=0)
# A magic number, a descriptor, a window of 2^28 bytes, and one raw block, the last one.
LARGE_WINDOW = b"\x28\xb5\x2f\xfd" + bytes([0, 28 - 10 << 3, len(RECORD) << 3 | 1, 0, 0]) + RECORD

EXAMPLES = {
    differences.ZEROS: MESSAGES + bytes(40),
    differences.SIZE_NEAR_INT32_MAX: MESSAGES + struct.pack(">qiIbb", 13, 2**31 - 12, 0, 1, 0),
    differences.OUT_OF_MEMORY: ref.wrapper(
        1, ref.GZIP, ROWS, inner=ref.messages(1, ROWS, 10) + PART_OF_1_GIB
    ),
    differences.SMALL_PART: ref.wrapper(
        1, ref.GZIP, ROWS, inner=ref.messages(1, ROWS, 10) + struct.pack(">qi", 13, 13)
    ),
    differences.LINKED_BLOCKS: ref.batch(LINKED, 1, attributes=ref.LZ4, base_timestamp=DAY),
    differences.MORE_LZ4: ref.batch(WITH_EMPTY_BLOCK, 1, attributes=ref.LZ4, base_timestamp=DAY),
    differences.CHECKSUM_OF_V0: ref.batch(OF_V0, 1, attributes=ref.LZ4, base_timestamp=DAY),
    differences.LARGE_WINDOW: ref.batch(LARGE_WINDOW, 1, attributes=ref.ZSTD, base_timestamp=DAY),
    differences.UNKNOWN_CODEC: ref.message(1, 0, DAY, None, b"value", attributes=5),
    differences.ZSTD_UNREAD: ref.batch(ref.compress(ref.ZSTD, b""), 0, attributes=ref.ZSTD),
    differences.TIMESTAMP_BELOW_NONE: ref.batch_of([Row(0, -2, None, b"value")]),
    differences.DESCENDING_OFFSETS: ref.batch_of([Row(1, DAY, None, b"1"), Row(0, DAY, None, b"0")]),
    differences.HEADER_KEY: ref.batch_of(WITH_HEADERS),
    differences.PADDED_LENGTH: ref.batch(bytes([RECORD[0] | 0x80, 0]) + RECORD[1:], 1, base_timestamp=DAY),
    differences.NEXT_OFFSET: ref.message(1, 2**63 - 1, DAY, None, b"value"),
    differences.SEQUENCE: ref.batch_of([Row(3, DAY, None, b"3")], base_offset=5, producer=(7, 0, 5)),
}


def test_tables_when_read_then_have_the_rows_that_have_an_example() -> None:
    found = []
    for section in SECTIONS:
        table = PAGE[PAGE.index(section) + len(section) :].split("\n## ")[0]
        found += re.findall(r"^\| (.+?) \|", table, re.MULTILINE)[1:]
    assert found == [*EXAMPLES]


@pytest.mark.oracle
@pytest.mark.xdist_group("oracle")
@pytest.mark.parametrize("row", EXAMPLES)
def test_example_when_compared_with_kafka_then_its_row_is_the_only_difference(
    oracle: KafkaOracle, row: str
) -> None:
    comparison = Comparison(EXAMPLES[row], to_magic=1)
    comparison.check(oracle.ask(comparison.requests()))
    assert comparison.differences == {row}
