"""Median and percentiles, against cases done by hand and against what defines them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.speed.spread import Spread, median, percentile

samples = st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=50)


def test_the_median_of_an_even_count_is_the_mean_of_the_middle_two() -> None:
    assert median([4.0, 1.0, 3.0, 2.0]) == 2.5


def test_the_median_of_an_odd_count_is_the_middle_one() -> None:
    assert median([9.0, 1.0, 5.0]) == 5.0


@pytest.mark.parametrize(("share", "expected"), [(0.0, 1), (0.5, 500), (0.999, 999), (1.0, 1000)])
def test_a_percentile_is_the_smallest_sample_that_the_share_does_not_exceed(
    share: float, expected: int
) -> None:
    assert percentile(range(1000, 0, -1), share) == expected


@given(samples, st.floats(0, 1))
def test_a_percentile_is_one_of_the_samples_and_covers_its_share(values: list[float], share: float) -> None:
    found = percentile(values, share)
    assert found in values
    assert sum(value <= found for value in values) >= share * len(values)


@given(samples)
def test_the_median_lies_within_the_range(values: list[float]) -> None:
    spread = Spread.of(values)
    assert spread.least <= spread.median <= spread.most
    assert {spread.least, spread.most} <= set(values)
