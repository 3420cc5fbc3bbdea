from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

pa = pytest.importorskip("pyarrow")

from kafkafmt.cli.json_values import json_values  # noqa: E402

INT64 = pa.int64()


@pytest.mark.parametrize(
    ("numbers", "kind", "expected"),
    [
        ([1_700_000_000_123_456_789], pa.timestamp("ns", "UTC"), ["2023-11-14T22:13:20.123456789Z"]),
        ([1_700_000_000_000_000_001], pa.timestamp("ns"), ["2023-11-14T22:13:20.000000001"]),
        (
            [0, -1, None],
            pa.timestamp("ms", "UTC"),
            ["1970-01-01T00:00:00Z", "1969-12-31T23:59:59.999Z", None],
        ),
        ([2**63 - 1], pa.timestamp("us"), ["294247-01-10T04:00:54.775807"]),
        ([-(2**63)], pa.timestamp("ms"), ["-292275055-05-16T16:47:04.192"]),
        ([3_723_004_005, None], pa.time64("us"), ["01:02:03.004005", None]),
        ([86_399_999_999_999], pa.time64("ns"), ["23:59:59.999999999"]),
        ([1_500_000, -1, 0, None], pa.duration("us"), ["PT1.500000S", "-PT0.000001S", "PT0S", None]),
    ],
)
def test_times_when_of_any_unit_and_range_then_are_iso_8601_with_all_digits(
    numbers: list[Any], kind: Any, expected: list[Any]
) -> None:
    assert json_values(pa.array(numbers, INT64).view(kind)) == expected


def test_short_times_and_dates_when_out_of_the_range_of_python_then_are_iso_8601() -> None:
    assert json_values(pa.array([3_723_004, None], pa.int32()).view(pa.time32("ms"))) == [
        "01:02:03.004",
        None,
    ]
    days = pa.array([0, 2**31 - 1, None], pa.int32()).view(pa.date32())
    assert json_values(days) == ["1970-01-01", "5881580-07-11", None]


def test_intervals_then_are_iso_8601() -> None:
    values = pa.array([(1, 2, 3_500_000_000), (0, 0, 0), None], pa.month_day_nano_interval())
    assert json_values(values) == ["P1M2DT3.500000000S", "P0M0DT0S", None]


def test_numbers_and_bytes_when_json_has_no_form_for_them_then_are_text() -> None:
    decimals = pa.array([Decimal("0.0000001"), Decimal("-12.5"), None], pa.decimal128(38, 7))
    assert json_values(decimals) == ["0.0000001", "-12.5000000", None]
    floats = pa.array([float("nan"), float("inf"), float("-inf"), 1.5, None])
    assert json_values(floats) == ["NaN", "Infinity", "-Infinity", 1.5, None]
    assert json_values(pa.array([b"\xff", None], pa.binary())) == ["/w==", None]


def test_nested_values_when_sliced_or_null_then_are_objects_and_lists() -> None:
    kind = pa.struct(
        [
            ("n", pa.int64()),
            ("times", pa.list_(pa.struct([("t", pa.timestamp("ms", "UTC"))]))),
            ("by", pa.map_(pa.bool_(), pa.list_(pa.int32()))),
            ("empty", pa.struct([])),
        ]
    )
    rows = [
        {"n": 1, "times": [{"t": 0}, None], "by": [(True, [1, 2]), (False, None)], "empty": {}},
        None,
        {"n": None, "times": None, "by": None, "empty": None},
        {"n": 2, "times": [], "by": [], "empty": {}},
    ]
    expected = [
        {
            "n": 1,
            "times": [{"t": "1970-01-01T00:00:00Z"}, None],
            "by": {"true": [1, 2], "false": None},
            "empty": {},
        },
        None,
        {"n": None, "times": None, "by": None, "empty": None},
        {"n": 2, "times": [], "by": {}, "empty": {}},
    ]
    array = pa.array(rows, kind)
    for start in range(len(rows)):
        assert json_values(array[start:]) == expected[start:]
    assert json_values(pa.array([[(1, "a"), (1, "b")]], pa.map_(pa.int64(), pa.string()))) == [{"1": "b"}]
