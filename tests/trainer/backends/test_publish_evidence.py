"""False alarms and misses of the publish check, over simulated log-probs of sampler and learner."""

from dataclasses import dataclass

import pytest
import torch

from gavel.trainer.backends.proof import FEWEST, Movement, Scores, Verdict, verdict

FLOOR = 0.02
ROUNDING = 0.02


@dataclass
class Simulation:
    """A probe of two sequences; rounding is drawn anew wherever sampler or learner computes."""

    tokens: int = 300
    change: float = 0.05
    """By which an update moves a log-prob, in nats: the standard deviation of all tokens."""
    moved: float = 1.0
    """Share of tokens that it moves."""
    common: float = 0.0
    """Share of the variance of rounding that all tokens of a sequence have in common."""
    flips: float = 0.0
    """Share of tokens that are routed to other experts: half a nat off."""
    bias: float = 0.0
    """Difference of sampler and learner that stays from adapter to adapter."""

    def __post_init__(self) -> None:
        self.generator = torch.Generator().manual_seed(0)

    def normal(self, count: int) -> torch.Tensor:
        return torch.randn(count, generator=self.generator)

    def rounding(self) -> torch.Tensor:
        half = self.tokens // 2
        common = torch.cat([self.normal(1).expand(half), self.normal(1).expand(self.tokens - half)])
        noise = ROUNDING * ((1 - self.common) ** 0.5 * self.normal(self.tokens) + self.common**0.5 * common)
        flipped = torch.rand(self.tokens, generator=self.generator) < self.flips
        return noise + 0.5 * flipped * self.normal(self.tokens)

    def update(self) -> torch.Tensor:
        hit = torch.rand(self.tokens, generator=self.generator) < self.moved
        return hit * self.change * self.normal(self.tokens) / max(self.moved, 1e-9) ** 0.5

    def verdict(self, served: str) -> Verdict:
        base = -2 - self.normal(self.tokens).abs()
        update, steady = self.update(), self.bias * self.normal(self.tokens)
        earlier = Scores(base + self.rounding(), base + steady + self.rounding())
        truth = {"new": update, "earlier": 0 * update, "another": 0.5 * self.normal(self.tokens)}[served]
        new = Scores(base + update + self.rounding(), base + steady + truth + self.rounding())
        seen = [(steady + self.rounding() - self.rounding()).abs().mean().item() for _ in range(6)]
        return verdict(new, earlier, earlier, max(seen), FLOOR)

    def share(self, found: set[Verdict], served: str, trials: int = 60) -> float:
        return sum(self.verdict(served) in found for _ in range(trials)) / trials


CHANGES = [0.0, 0.02, 0.2]
KINDS = {
    "independent rounding": {},
    "a few tokens": {"tokens": FEWEST},
    "rounding in common": {"common": 0.5},
    "nearly all rounding in common": {"common": 0.95},
    "experts routed otherwise": {"flips": 0.05},
    "a server that rounds otherwise": {"bias": 0.1},
    "one token in ten moves": {"moved": 0.1},
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("change", CHANGES)
def test_a_healthy_publication_is_never_taken_for_another(change: float, kind: str) -> None:
    simulation = Simulation(change=change, **KINDS[kind])
    assert simulation.share({"earlier", "another"}, "new") == 0


@pytest.mark.parametrize("kind", ["independent rounding", "rounding in common", "one token in ten moves"])
def test_a_lost_publication_is_found_from_a_few_times_the_rounding_on(kind: str) -> None:
    for change in (8 * ROUNDING, 1.0):
        simulation = Simulation(change=change, **KINDS[kind])
        assert simulation.share({"earlier"}, "earlier") > 0.85
        assert simulation.share({"new"}, "new") > 0.85


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("change", CHANGES)
def test_a_lost_publication_is_never_taken_for_the_new_one(change: float, kind: str) -> None:
    simulation = Simulation(change=change, **KINDS[kind])
    assert simulation.share({"new"}, "earlier") == 0


@pytest.mark.parametrize("kind", ["independent rounding", "rounding in common", "one token in ten moves"])
def test_another_adapter_far_away_is_found(kind: str) -> None:
    assert Simulation(change=0.06, **KINDS[kind]).share({"another", "earlier"}, "another") == 1


def test_a_sampler_that_no_bit_changes_is_stale_at_any_rate() -> None:
    simulation = Simulation(change=1e-5)
    base = -2 - simulation.normal(300).abs()
    before = Scores(base + simulation.rounding(), base + simulation.rounding())
    moved = Scores(base + simulation.rounding(), before.sampler)
    assert verdict(moved, before, before, 0.02, FLOOR) == "earlier"
    assert verdict(Scores(before.learner, before.sampler), before, before, 0.02, FLOOR) == "unknown", "nothing changed"
    half = torch.where(torch.arange(300) % 2 == 0, moved.learner, before.learner)
    assert verdict(Scores(half, before.sampler), before, before, 0.02, FLOOR) == "unknown", (
        "a change of a bit here and there"
    )


def test_certain_tokens_do_not_hide_a_sampler_that_no_bit_changes() -> None:
    simulation = Simulation(change=1e-5)
    base = torch.cat([torch.zeros(250), -2 - simulation.normal(50).abs()])
    open_ = (base < 0).float()
    before = Scores(base + open_ * simulation.rounding(), base + open_ * simulation.rounding())
    moved = Scores(base + open_ * simulation.rounding(), before.sampler)
    assert verdict(moved, before, before, 0.02, FLOOR) == "earlier"


def test_of_a_few_tokens_nothing_is_told() -> None:
    assert Simulation(tokens=FEWEST - 1, change=5.0).share({"unknown"}, "earlier", 20) == 1


@dataclass
class Sampler:
    """A sampler whose log-probs move by `share` of what rounding and update move the learner's."""

    share: float = 1.0
    varies: float = 0.18
    """Standard deviation of the logarithm of `share`, from publication to publication."""
    noise: float = 1e-3
    """Nats by which two passes differ."""
    tokens: int = 300

    def __post_init__(self) -> None:
        self.simulation = Simulation(tokens=self.tokens)
        self.movement = Movement()

    def publication(self, *, follows: bool = True, of: float = 1.0) -> bool:
        """`of`: the learner's change, as a share of the rounding."""
        normal = self.simulation.normal
        moved = of * ROUNDING * self.share * (self.varies * normal(1)).exp() * normal(self.tokens) if follows else 0
        learner, sampler = normal(self.tokens), normal(self.tokens)
        last = Scores(learner, sampler + self.noise * normal(self.tokens))
        new = Scores(learner + of * ROUNDING * normal(self.tokens), sampler + moved + self.noise * normal(self.tokens))
        return self.movement.stands_still(new, last, sampler + moved + self.noise * normal(self.tokens))


SAMPLERS = {
    "nearly the same at each pass": Sampler,
    "the same at each pass": lambda: Sampler(noise=0),
    "a few tokens": lambda: Sampler(tokens=FEWEST),
    "finer rounding than the learner's": lambda: Sampler(share=0.1, noise=1e-4),
    "passes that differ by a fifth of the rounding": lambda: Sampler(noise=ROUNDING / 5),
    "passes that differ by half of the rounding": lambda: Sampler(noise=ROUNDING / 2),
    "passes that differ by twice the rounding": lambda: Sampler(noise=ROUNDING * 2),
}
FOUND = [*SAMPLERS][:5]


@pytest.mark.parametrize("kind", SAMPLERS)
def test_a_sampler_that_follows_is_never_taken_for_one_that_stands_still(kind: str) -> None:
    sampler = SAMPLERS[kind]()
    assert not any(sampler.publication() for _ in range(2000))


@pytest.mark.parametrize("kind", FOUND)
@pytest.mark.parametrize("healthy", [4, 100])
def test_a_sampler_that_stands_still_is_found_within_five_publications_never_by_one(kind: str, healthy: int) -> None:
    sampler = SAMPLERS[kind]()
    assert not any(sampler.publication() for _ in range(healthy))
    found = [sampler.publication(follows=False) for _ in range(5)]
    assert not found[0]
    assert any(found)


def test_an_update_that_becomes_small_and_passes_that_begin_to_differ_are_no_standstill() -> None:
    sampler = Sampler()
    assert not any(sampler.publication() for _ in range(20))
    assert not any(sampler.publication(of=0.01) for _ in range(20)), "below what two passes differ by"
    sampler.noise = 3 * ROUNDING
    assert not any(sampler.publication() for _ in range(200))


def test_a_sampler_that_never_moved_is_not_known() -> None:
    sampler = Sampler()
    assert not any(sampler.publication(follows=False) for _ in range(20))


def test_where_the_learner_did_not_move_or_tokens_are_few_nothing_is_told() -> None:
    sampler = Sampler()
    for _ in range(20):
        sampler.publication()
    assert not any(sampler.publication(follows=False, of=0) for _ in range(5))
    few = Sampler(tokens=FEWEST - 1, noise=0)
    assert not any(few.publication(follows=n < 10) for n in range(20))
