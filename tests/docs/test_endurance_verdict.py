"""The rule by which `make bench-endurance` says that a series is flat."""

from __future__ import annotations

import pytest
from bench.endurance.verdict import Tolerance, verdict

TOLERANCE = Tolerance(share=0.05, least=6, unit="MiB", form=".1f")
MINUTES = 120


def series(*values: float) -> list[tuple[float, float]]:
    """The values, each for an equal part of the run, a point a minute."""
    each = MINUTES // len(values)
    return [(float(minute), value) for minute, value in enumerate(v for v in values for _ in range(each))]


@pytest.mark.parametrize(
    ("points", "is_flat", "an_hour"),
    [
        pytest.param(series(100.0), True, 0.0, id="constant"),
        pytest.param(series(*[100.0, 104.0] * 60), True, 0.0, id="a sawtooth"),
        pytest.param([(m, 100 + m / 10) for m in map(float, range(MINUTES))], False, 6.0, id="a leak"),
        pytest.param([(m, 100 - m / 10) for m in map(float, range(MINUTES))], True, -6.0, id="a decline"),
        pytest.param(series(50.0, *[100.0] * 9), True, 0.0, id="a growth in the warm-up"),
        pytest.param(series(*[100.0] * 5, 120.0), False, 0.0, id="a step near the end"),
        pytest.param([*series(100.0)[:-5], *[(m, 900.0) for m in range(115, 120)]], True, 0.0, id="a peak"),
        pytest.param(series(1000.0, 1000.0, 1040.0, 1040.0), True, None, id="within the share"),
    ],
)
def test_verdict_when_a_series_ends_higher_than_it_began_then_is_flat_within_the_tolerance(
    points: list[tuple[float, float]], is_flat: bool, an_hour: float | None
) -> None:
    found = verdict(points, TOLERANCE)
    assert found is not None
    assert found.is_flat == is_flat
    if an_hour is not None:
        assert found.slope == pytest.approx(an_hour)


def test_verdict_when_points_are_few_then_is_none() -> None:
    assert verdict([(1.0, 100.0), (2.0, 100.0)], TOLERANCE) is None
