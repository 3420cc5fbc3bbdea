"""How one total is divided into parts, and the least total that would do."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkafmt.memory import MemoryPlanError, Part
from kafkafmt.memory.division import Division, least_total

parts = st.builds(
    Part,
    st.text("abc", min_size=4),
    st.integers(0, 1000),
    st.sampled_from([0, 4, 8, 16]),
    st.none() | st.just(500),
)


@given(
    total=st.integers(0, 20_000),
    threads=st.integers(1, 4),
    reserved=st.lists(parts, max_size=1),
    held=st.lists(parts, max_size=2),
    rest=st.integers(1, 3000),
)
def test_division_when_it_leaves_too_little_then_the_error_names_a_total_that_leaves_enough(
    total: int, threads: int, reserved: list[Part], held: list[Part], rest: int
) -> None:
    division = Division(total, threads, tuple(reserved), tuple(held))
    if division.rest_bytes >= rest:
        division.ensure_rest(rest, "a batch")
        return
    with pytest.raises(MemoryPlanError, match=r"^a batch: expected a total of at least .*, found ") as raised:
        division.ensure_rest(rest, "a batch")
    least = raised.value.least_total_bytes
    assert least > total
    assert Division(least, threads, tuple(reserved), tuple(held)).rest_bytes >= rest
    assert Division(least - 1, threads, tuple(reserved), tuple(held)).rest_bytes < rest


def test_least_total_when_given_a_step_then_is_a_multiple_of_it_above_what_is_too_small() -> None:
    assert least_total(lambda total: total >= 1001, 500, step=100) == 1100
    assert least_total(lambda total: True, 500, step=100) == 600


def test_least_total_when_a_total_is_no_plan_then_it_is_too_small() -> None:
    def suffices(total: int) -> bool:
        Division(total).ensure_rest(70, "a batch")
        return True

    assert least_total(suffices) == 70


def test_part_when_the_whole_is_below_zero_then_is_its_least() -> None:
    assert Part("reading", 30, one_in=4).of(-100) == 30
