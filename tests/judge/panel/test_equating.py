import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gavel.judge.panel.equating import Point, equate
from gavel.judge.panel.schedule import LARGEST_WHOLE, block_rounds


@given(st.integers(LARGEST_WHOLE + 1, 70), st.integers(2, 4), st.randoms(use_true_random=False))
def test_without_noise_equating_finds_every_block_s_offset(members, count, random):
    shown = [block for blocks in block_rounds(members, count, "seed") for block in blocks]
    truth = [random.uniform(0, 1) for _ in range(members)]
    gained = [random.uniform(-0.3, 0.3) for _ in shown]
    points = [Point(n, m, truth[m] + gained[n], weight=1 + n % 3) for n, block in enumerate(shown) for m in block]
    offsets, fitted = equate(points)
    assert fitted == len(shown) - 1
    differences = [gained[n] - offsets[n] for n in range(len(shown))]
    assert max(differences) - min(differences) < 1e-9
    assert math.fsum(p.weight * offsets[p.scale] for p in points) == pytest.approx(0, abs=1e-9)


def test_scales_on_all_members_are_moved_to_their_common_mean():
    harsh = [Point("harsh", member, score, weight=3.0) for member, score in enumerate((0.1, 0.2, 0.3))]
    kind = [Point("kind", member, score, weight=1.0) for member, score in enumerate((0.9, 0.5, 0.7))]
    assert equate([*harsh, *kind])[0] == pytest.approx({"harsh": 0.2 - 0.325, "kind": 0.7 - 0.325})


def test_scales_that_no_member_links_keep_their_scores():
    offsets, fitted = equate([Point("a", 0, 0.2), Point("a", 1, 0.4), Point("b", 2, 0.9)])
    assert offsets == pytest.approx({"a": 0.0, "b": 0.0})
    assert fitted == 0
