from __future__ import annotations

import numpy as np
import pytest

from _kafkafmt.payloads.protobuf import FieldRule, MessageScanner, ScanStatus, ValueKind, join_ranges

DATA = np.frombuffer(b"\x08\x05\x12\x01a\x08\x07", np.uint8)
SCANNER = MessageScanner(
    [(1, ValueKind.INT32, 0, -1, ()), (2, ValueKind.STRING, FieldRule.REPEATED, -1, ())], 0
)


def int64(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


def test_messages_when_of_several_ranges_then_are_merged_and_those_without_are_absent() -> None:
    (number, texts), failures = SCANNER.scan(DATA, int64(0, 2, 5), int64(2, 5, 7), int64(0, 2, 2), 3)
    assert number.present.tolist() == [1, 0, 1]
    assert number.values.tolist() == [5, 0, 7]
    assert texts.offsets.tolist() == [0, 0, 0, 1]
    assert texts.values.tolist() == [[4, 5]]
    assert failures.shape == (0, 4)


def test_failure_when_a_message_ends_early_then_has_message_status_position_and_field() -> None:
    _, failures = SCANNER.scan(DATA, int64(0, 2), int64(2, 4), int64(0, 1), 2)
    assert failures.tolist() == [[1, ScanStatus.LENGTH, 3, 2]]


@pytest.mark.parametrize(
    ("starts", "ends", "owners", "count"),
    [
        ([0], [8], [0], 1),
        ([-1], [2], [0], 1),
        ([3], [2], [0], 1),
        ([0], [2], [1], 1),
        ([0], [2], [-1], 1),
        ([0, 0], [2, 2], [1, 0], 2),
        ([0, 0], [2], [0], 1),
        ([0], [2], [0, 0], 1),
    ],
)
def test_ranges_when_outside_of_the_data_or_not_ascending_then_are_refused(
    starts: list[int], ends: list[int], owners: list[int], count: int
) -> None:
    with pytest.raises(ValueError, match="range"):
        SCANNER.scan(DATA, int64(*starts), int64(*ends), int64(*owners), count)


def test_joined_ranges_when_outside_of_the_data_then_are_refused() -> None:
    data, offsets = join_ranges(DATA, np.array([[5, 7], [0, 0], [2, 3]], np.int64))
    assert (bytes(data), offsets.tolist()) == (b"\x08\x07\x12", [0, 2, 2, 3])
    for place in ([0, 8], [-1, 2], [3, 2]):
        with pytest.raises(ValueError, match="outside of 7 bytes"):
            join_ranges(DATA, np.array([place], np.int64))


def test_scan_when_there_are_no_messages_then_columns_are_empty() -> None:
    (number, texts), failures = SCANNER.scan(DATA[:0], int64(), int64(), int64(), 0)
    assert (len(number.values), texts.values.shape, texts.offsets.tolist()) == (0, (0, 2), [0])
    assert len(failures) == 0
