"""The compression ratio that a producer expects (KIP-126)."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kafkafmt as kf
from kafkafmt import Codec, CompressionRatioEstimator, RecentRatioEstimator
from kafkafmt.build.estimator import as_estimator


def test_estimate_when_nothing_was_observed_then_1():
    for codec in Codec:
        assert CompressionRatioEstimator().estimate("topic", codec) == 1.0


def test_observe_when_better_or_worse_then_by_the_steps_or_to_what_was_observed():
    estimator = CompressionRatioEstimator()
    assert estimator.observe("t", Codec.GZIP, 0.5) == pytest.approx(0.995)
    assert estimator.observe("t", Codec.GZIP, 0.993) == pytest.approx(0.993)  # not past what was observed
    assert estimator.observe("t", Codec.GZIP, 0.994) == pytest.approx(1.043)
    assert estimator.observe("t", Codec.GZIP, 2.0) == 2.0
    assert estimator.estimate("t", Codec.GZIP) == 2.0


@given(st.lists(st.floats(0, 3), max_size=500))
def test_estimate_when_any_ratios_then_never_negative(ratios):
    """Case 35: the estimate is never negative."""
    estimator = CompressionRatioEstimator()
    for ratio in [*ratios, *[0.0] * 300]:
        assert estimator.observe("t", Codec.LZ4, ratio) >= 0
    assert estimator.estimate("t", Codec.LZ4) >= 0


def test_estimate_when_several_topics_and_codecs_then_kept_apart():
    """Case 35: it is kept per topic and codec."""
    estimator = CompressionRatioEstimator()
    estimator.observe("a", Codec.GZIP, 0.1)
    assert estimator.estimate("a", Codec.ZSTD) == estimator.estimate("b", Codec.GZIP) == 1.0
    assert estimator.estimate("a", Codec.GZIP) == pytest.approx(0.995)


def test_reset_when_a_batch_was_split_then_1_for_every_codec_of_that_topic():
    """Case 35: a split resets it to 1.0."""
    estimator = CompressionRatioEstimator()
    for codec in Codec:
        estimator.observe("a", codec, 0.1)
        estimator.observe("b", codec, 0.1)
    estimator.reset("a")
    assert {estimator.estimate("a", codec) for codec in Codec} == {1.0}
    assert {estimator.estimate("b", codec) for codec in Codec} == {0.995}
    estimator.reset("never seen")


@pytest.mark.parametrize("ratio", [-0.1, float("nan"), float("-inf"), float("inf")])
def test_observe_when_the_ratio_is_impossible_then_value_error(ratio):
    with pytest.raises(ValueError, match="ratio"):
        CompressionRatioEstimator().observe("t", Codec.GZIP, ratio)


def test_observe_when_from_many_threads_then_none_is_lost():
    estimator = kf.CompressionRatioEstimator(improving_step=0.0001)

    def observe():
        for _ in range(1000):
            estimator.observe("t", Codec.GZIP, 0.0)

    threads = [threading.Thread(target=observe) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert estimator.estimate("t", Codec.GZIP) == pytest.approx(0.2)


@pytest.mark.parametrize("number", [-0.1, float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["improving_step", "deteriorating_step", "contingency_factor"])
def test_estimator_when_a_step_or_the_factor_is_impossible_then_value_error(name, number):
    with pytest.raises(ValueError, match=f"{name}: expected"):
        CompressionRatioEstimator(**{name: number})


def test_estimator_when_steps_are_0_then_only_what_is_worse_moves_the_estimate():
    estimator = CompressionRatioEstimator(improving_step=0.0, deteriorating_step=0.0)
    assert estimator.observe("t", Codec.GZIP, 0.5) == 1.0
    assert estimator.observe("t", Codec.GZIP, 1.5) == 1.5


def test_estimator_when_the_contingency_factor_is_given_then_the_estimate_is_without_it():
    estimator = CompressionRatioEstimator(contingency_factor=2.0)
    assert (estimator.contingency_factor, estimator.estimate("t", Codec.GZIP)) == (2.0, 1.0)
    assert CompressionRatioEstimator().contingency_factor == 1.05
    with pytest.raises(ValueError, match="contingency_factor"):
        CompressionRatioEstimator(contingency_factor=0.0)


# The largest of the recent ones


def test_recent_estimate_when_ratios_were_observed_then_the_largest_of_the_latest():
    estimator = RecentRatioEstimator(3)
    assert estimator.estimate("t", Codec.LZ4) == 1.0
    observed = [estimator.observe("t", Codec.LZ4, ratio) for ratio in (0.5, 0.2, 0.3, 0.1, 0.1, 0.1, 1.5)]
    assert observed == [0.5, 0.5, 0.5, 0.3, 0.3, 0.1, 1.5]
    assert estimator.estimate("t", Codec.LZ4) == 1.5


def test_recent_estimate_when_topics_and_codecs_differ_then_kept_apart_and_reset_by_topic():
    estimator = RecentRatioEstimator()
    estimator.observe("a", Codec.LZ4, 0.1)
    estimator.observe("a", Codec.ZSTD, 0.2)
    estimator.observe("b", Codec.LZ4, 0.3)
    estimator.reset("a")
    assert [estimator.estimate(*of) for of in (("a", Codec.LZ4), ("a", Codec.ZSTD), ("b", Codec.LZ4))] == [
        1,
        1,
        0.3,
    ]


@pytest.mark.parametrize(
    "make", [lambda: RecentRatioEstimator(0), lambda: RecentRatioEstimator(contingency_factor=0)]
)
def test_recent_estimator_when_its_options_make_no_sense_then_value_error(make):
    with pytest.raises(ValueError, match=r"expected .* found 0"):
        make()


@pytest.mark.parametrize("estimator", [CompressionRatioEstimator(), RecentRatioEstimator()])
@pytest.mark.parametrize("ratio", [-0.1, float("nan")])
def test_observe_when_ratio_is_none_then_value_error(estimator, ratio):
    with pytest.raises(ValueError, match="ratio: expected 0 or more"):
        estimator.observe("t", Codec.LZ4, ratio)


@pytest.mark.parametrize(
    ("name", "kind"), [("recent", RecentRatioEstimator), ("kip126", CompressionRatioEstimator)]
)
def test_estimator_of_kip_126_when_named_then_a_new_one_of_that_kind(name: str, kind: type) -> None:
    assert type(as_estimator(name)) is kind
    assert as_estimator(name) is not as_estimator(name)


def test_estimator_when_it_is_an_object_then_that_object() -> None:
    estimator = RecentRatioEstimator(3)
    assert as_estimator(estimator) is estimator


@pytest.mark.parametrize(("wrong", "error"), [("kip-126", ValueError), ("", ValueError), (None, TypeError)])
def test_estimator_when_it_is_none_then_refused_with_the_names(wrong: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="expected one of recent, kip126"):
        as_estimator(wrong)


@pytest.mark.parametrize("estimator", [CompressionRatioEstimator(), RecentRatioEstimator()])
@pytest.mark.parametrize("ratio", ["x", None])
def test_observe_when_ratio_is_no_number_then_type_error(estimator, ratio):
    with pytest.raises(TypeError, match="ratio: expected a number, found "):
        estimator.observe("t", Codec.LZ4, ratio)
