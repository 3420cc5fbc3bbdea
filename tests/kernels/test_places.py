"""Places of batches: searches by offset and by position, against a list."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kafkafmt as kf
from _kafkafmt.batches.places import BatchPlaces
from _kafkafmt.batches.scan import scan

PLACES = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), max_size=40)


def plain_remember(places: list[tuple[int, int]], offset: int, position: int, most: int) -> None:
    number = sum(place <= (offset, position) for place in places)
    after = places[number:]
    if number and places[number - 1][1] < position and (not after or position < after[0][1]):
        places.insert(number, (offset, position))
        if len(places) > most:
            del places[1::2]


@given(base_offset=st.integers(0, 20), remembered=PLACES, most=st.integers(1, 12))
def test_places_in_any_order_are_those_of_a_plain_list(
    base_offset: int, remembered: list[tuple[int, int]], most: int
) -> None:
    places, plain = BatchPlaces(base_offset, most=most, stride_bytes=1), [(base_offset, 0)]
    for offset, position in remembered:
        places.remember(offset, position)
        plain_remember(plain, offset, position, most)
    assert len(places) == len(plain) <= max(most, 1)
    for wanted in range(62):
        below = [position for offset, position in plain if offset <= wanted]
        assert places.position_for(wanted) == (below[-1] if below else plain[0][1])
        above = [offset for offset, position in plain if position >= wanted]
        assert places.offset_above(wanted) == (above[0] if above else None)


@pytest.mark.parametrize("stride_bytes", [1, 200, 100_000])
def test_places_of_a_run_are_one_for_each_stride_and_its_end(stride_bytes: int) -> None:
    data = b""
    starts = []
    for offset in range(0, 30, 3):
        builder = kf.RecordBatchBuilder(base_offset=offset)
        builder.append(0, None, b"value")
        starts.append(len(data))
        data += bytes(builder.build())
    run = scan(data)[0]
    places = BatchPlaces(0, most=1000, stride_bytes=stride_bytes)

    places.remember_run(run)

    changes = [b for a, b in pairwise(starts) if a // stride_bytes != b // stride_bytes]
    assert len(places) == 1 + len(changes) + 1
    assert places.offset_above(len(data)) == 28
    for offset, start in zip(range(0, 30, 3), starts, strict=True):
        found = places.position_for(offset)
        assert found <= start
        assert found in (0, *changes)


def test_places_when_the_last_offset_is_the_highest_then_none_is_after_it() -> None:
    builder = kf.RecordBatchBuilder(base_offset=2**63 - 1)
    builder.append(0, None, b"value")
    data = bytes(builder.build())
    places = BatchPlaces(0, most=10, stride_bytes=1)
    places.remember_run(scan(data)[0])
    assert len(places) == 1


@pytest.mark.parametrize(("most", "stride_bytes"), [(0, 1), (1, 0)])
def test_places_without_room_are_refused(most: int, stride_bytes: int) -> None:
    with pytest.raises(ValueError, match="expected 1 or more"):
        BatchPlaces(0, most=most, stride_bytes=stride_bytes)
