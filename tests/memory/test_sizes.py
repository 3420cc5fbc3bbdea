"""Sizes as people write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkafmt._util.sizes import parse_size, size_text


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("65536", 65536),
        ("65536B", 65536),
        ("512m", 512 * 1024**2),
        ("512MB", 512 * 1024**2),
        ("512MiB", 512 * 1024**2),
        ("4g", 4 * 1024**3),
        ("1.5GiB", 3 * 1024**3 // 2),
        (" 2 t ", 2 * 1024**4),
        ("0.1K", 102),
        (1, 1),
    ],
)
def test_size_when_written_in_any_way_then_its_bytes(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "text",
    [
        "",
        "m",
        "-1",
        "1e3",
        "1..5g",
        "5 megabytes",
        "5mi",
        "5ib",
        "1,5g",
        "0",
        "0.5",
        "9" * 20,
        "٣m",
        "1\n2",
        -1,
        0,
    ],
)
def test_size_when_it_is_none_then_one_line_that_says_what_was_found(text):
    with pytest.raises(ValueError, match="expected a size of 1 byte or more") as error:
        parse_size(text)
    assert repr(text) in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("value", [1.5, None, True, b"1m"])
def test_size_when_of_another_type_then_type_error(value):
    with pytest.raises(TypeError, match="expected a number of bytes"):
        parse_size(value)


def test_size_when_too_large_then_the_error_has_the_largest_one():
    with pytest.raises(ValueError, match="expected a size of 1 byte to 9223372036854775807"):
        parse_size(2**63)


def test_size_when_least_is_given_then_it_counts():
    assert parse_size("0", least=0) == 0
    with pytest.raises(ValueError, match="expected a size of 65536 bytes or more"):
        parse_size("63K", least=65536)


@given(st.integers(0, 2**63 - 1))
def test_size_when_written_and_read_then_the_same(size):
    assert parse_size(size_text(size), least=0) == size
