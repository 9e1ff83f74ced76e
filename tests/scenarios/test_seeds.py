"""Seeds by name: stable, in range, and different for different places."""

from hypothesis import given
from hypothesis import strategies as st

from scenarios.seeds import seed_of

places = st.lists(st.integers() | st.text(alphabet="abc-_ é", min_size=1), min_size=1, max_size=5)


def test_the_seed_of_a_place_never_changes() -> None:
    assert seed_of(0, "train", 3, "1007", 2) == 1763022586744265337
    assert seed_of("evaluation") == 0


@given(places)
def test_a_seed_fits_62_bits_and_is_the_same_again(place: list) -> None:
    assert 0 <= seed_of(*place) < 2**62
    assert seed_of(*place) == seed_of(*place)


def test_neighbouring_places_have_different_seeds() -> None:
    seeds = {seed_of(seed, split, step, member) for seed in range(5) for split in "ab" for step in range(20) for member in range(20)}
    assert len(seeds) == 5 * 2 * 20 * 20


def test_every_bit_of_a_seed_is_used() -> None:
    seeds = [seed_of(number) for number in range(400)]
    for bit in range(62):
        assert 120 < sum(seed >> bit & 1 for seed in seeds) < 280


def test_a_number_and_its_text_name_the_same_place() -> None:
    assert seed_of(1, "2") == seed_of("1", 2)
