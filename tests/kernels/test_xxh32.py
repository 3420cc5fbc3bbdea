"""xxHash32 against the package xxhash, in pieces of any size."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from _kafkafmt.crc.xxh32 import XXH32, xxh32

xxhash = pytest.importorskip("xxhash")


@given(st.binary(max_size=200), st.lists(st.integers(0, 40), max_size=10))
def test_xxh32_when_bytes_come_in_pieces_then_is_that_of_the_whole(data: bytes, sizes: list[int]) -> None:
    checksum, position = XXH32(), 0
    for size in sizes:
        checksum.update(data[position : position + size])
        position += size
    checksum.update(memoryview(data)[position:])
    assert checksum.digest() == xxh32(data) == xxhash.xxh32_intdigest(data)
