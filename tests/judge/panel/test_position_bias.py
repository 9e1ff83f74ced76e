import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gavel.judge.panel.position_bias import PositionBias
from gavel.judge.panel.schedule import orders


def test_the_offset_of_each_position_is_found_over_many_ballots():
    bias = PositionBias()
    for row in orders(4, 64, "seed"):
        bias.add([0.2 + member / 10 - position / 20 for position, member in enumerate(row)])
    assert bias.means == pytest.approx([0.075, 0.025, -0.025, -0.075])
    assert bias.slope == pytest.approx(-0.075)


@given(st.lists(st.lists(st.floats(0, 1), min_size=5, max_size=5), min_size=2, max_size=20))
def test_the_slope_s_error_is_that_of_the_mean_of_the_ballots_slopes(ballots):
    bias, slopes = PositionBias(), []
    for scores in ballots:
        bias.add(scores)
        slopes.append((scores[4] - scores[0] + (scores[3] - scores[1]) / 2) / 2.5)
    assert bias.slope == pytest.approx(statistics.fmean(slopes), abs=1e-9)
    assert bias.slope_error == pytest.approx(statistics.stdev(slopes) / math.sqrt(len(slopes)), abs=1e-6)


@pytest.mark.parametrize(
    ("ballots", "gain", "noise", "biased"),
    [
        (50, 0.11, 0.0, True),
        (49, 0.11, 0.0, False),
        (50, -0.11, 0.0, True),
        (50, 0.09, 0.0, False),
        (50, 0.11, 0.4, False),
    ],
)
def test_a_bias_must_be_large_and_significant(ballots, gain, noise, biased):
    bias = PositionBias()
    for number in range(ballots):
        tilt = gain + (noise if number % 2 else -noise)
        bias.add([0.5 - tilt, 0.5, 0.5 + tilt])
    assert bias.is_biased == biased
