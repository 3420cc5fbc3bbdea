"""Options that select and decode records: their values, and that they are the same on every command."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import get_args

import click
import pytest

from kafkafmt.cli.record_options import FORMATS, FRAMINGS, Topics, time_range
from kafkafmt.cli.values import Time
from kafkafmt.log.time_range import TimeRange

NOON = datetime(2026, 1, 31, 12, tzinfo=timezone.utc)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-01-31T12:00:00Z", NOON),
        ("2026-01-31T13:00:00+01:00", NOON),
        ("2026-01-31 12:00", NOON),
        ("2026-01-31", NOON.replace(hour=0)),
        ("1769860800000", NOON),
        ("1769860800001", NOON + timedelta(milliseconds=1)),
    ],
)
def test_time_when_it_is_given_in_any_form_then_is_the_same(text: str, expected: datetime) -> None:
    assert Time().convert(text, None, None) == expected


@pytest.mark.parametrize(
    ("text", "before"),
    [
        ("-90s", timedelta(seconds=90)),
        ("-5m", timedelta(minutes=5)),
        ("-2h", timedelta(hours=2)),
        ("-7d", timedelta(days=7)),
    ],
)
def test_time_when_it_is_before_now_then_is_that_long_ago(text: str, before: timedelta) -> None:
    earliest = datetime.now(timezone.utc) - before
    assert earliest <= Time().convert(text, None, None) <= datetime.now(timezone.utc) - before


@pytest.mark.parametrize(
    "text", ["", "noon", "1769860800", "20260131", "-2", "-2w", "2h", "-99999999d", "9" * 30]
)
def test_time_when_it_has_another_form_then_is_refused_with_the_forms(text: str) -> None:
    with pytest.raises(click.BadParameter, match="is not a time, as 2026-01-31T12:00:00Z"):
        Time().convert(text, None, None)


def test_time_range_when_a_time_is_between_milliseconds_then_begins_at_the_next_one() -> None:
    between = NOON + timedelta(microseconds=1)
    assert time_range(between, NOON + timedelta(seconds=1)) == TimeRange(1769860800001, 1769860801000)


def test_time_range_when_it_begins_before_1970_then_begins_there() -> None:
    before = datetime(1960, 1, 1, tzinfo=timezone.utc)
    assert time_range(before, NOON) == TimeRange(0, 1769860800000)
    assert time_range(before, before + timedelta(days=1)) == TimeRange(0, 0)


def test_time_range_when_it_is_empty_then_is_refused() -> None:
    with pytest.raises(click.UsageError, match="no record is in between"):
        time_range(NOON, NOON)


def test_topics_when_there_are_several_then_are_split_at_commas() -> None:
    assert Topics().convert("orders, page-*,orders", None, None) == ("orders", "page-*")


@pytest.mark.parametrize("text", ["", "orders,", ",", "a,,b"])
def test_topics_when_one_is_empty_then_are_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match="expected names or globs with commas between them"):
        Topics().convert(text, None, None)


def test_formats_then_are_those_of_decoding() -> None:
    pytest.importorskip("pyarrow")
    from kafkafmt.decode.framing import Framing
    from kafkafmt.decode.options import Format

    assert (get_args(Format), get_args(Framing)) == (FORMATS, FRAMINGS)
