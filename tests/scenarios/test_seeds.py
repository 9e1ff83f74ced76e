"""Seeds by name: stable, in range, and different for different places."""

from itertools import product

from hypothesis import given, settings
from hypothesis import strategies as st

from gavel.scenarios.seeds import seed_of

untimed = settings(deadline=None)

places = st.lists(st.integers() | st.text(alphabet="abc-_ é", min_size=1), min_size=1, max_size=5)


def test_the_seed_of_a_place_never_changes() -> None:
    assert seed_of(0, "train", 3, "1007", 2) == 1617203419219693553
    assert seed_of("evaluation") == 1777858146974599569


@untimed
@given(places)
def test_a_seed_fits_62_bits_and_is_the_same_again(place: list) -> None:
    assert 0 <= seed_of(*place) < 2**62
    assert seed_of(*place) == seed_of(*place)


def test_neighbouring_places_have_different_seeds() -> None:
    places = list(product(range(5), ["train", "held_out"], range(20), range(20)))
    assert len({seed_of(*place) for place in places}) == len(places)


def test_every_bit_of_a_seed_is_used() -> None:
    seeds = [seed_of(number) for number in range(400)]
    for bit in range(62):
        assert 120 < sum(seed >> bit & 1 for seed in seeds) < 280


def test_a_name_with_a_slash_is_not_two_names() -> None:
    assert seed_of("a/b") != seed_of("a", "b")
