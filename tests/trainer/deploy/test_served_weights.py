import random

import pytest

from gavel.trainer.deploy.smoke_test import by_greedy_text, by_logprobs

TOKENS = 96


def candidates(apart: float = 0.3) -> dict[str, list[float]]:
    draw = random.Random(3)
    base = [-2 * draw.random() for _ in range(TOKENS)]
    way = [apart * draw.gauss(0, 1) for _ in range(TOKENS)]
    return {
        "step 12": [b + w for b, w in zip(base, way, strict=True)],
        "step 11": [b + 0.5 * w for b, w in zip(base, way, strict=True)],
        "base": base,
    }


def noisy(values: list[float], noise: float, seed: int = 1) -> list[float]:
    draw = random.Random(seed)
    return [value + noise * draw.gauss(0, 1) for value in values]


@pytest.mark.parametrize("noise", [0.0, 1e-5, 0.02])
def test_the_adapter_is_found(noise: float) -> None:
    said = candidates()
    assert by_logprobs(noisy(said["step 12"], noise), "step 12", said).served is True


@pytest.mark.parametrize("served", ["step 11", "base"])
@pytest.mark.parametrize("noise", [0.0, 0.02])
def test_another_candidate_is_found_out_by_its_name(served: str, noise: float) -> None:
    said = candidates()
    finding = by_logprobs(noisy(said[served], noise), "step 12", said)
    assert finding.served is False
    assert served in finding.said


def test_a_step_whose_checkpoint_is_not_kept_is_found_out() -> None:
    said = candidates()
    step = [a + 0.3 * (b - a) for a, b in zip(said["base"], said["step 12"], strict=True)]
    assert by_logprobs(step, "step 12", {"step 12": said["step 12"], "base": said["base"]}).served is False


def test_another_model_is_found_out() -> None:
    said = candidates()
    finding = by_logprobs(noisy(said["step 12"], 2.0), "step 12", said)
    assert finding.served is False


def test_what_rounding_hides_is_not_claimed() -> None:
    said = candidates(apart=0.002)
    finding = by_logprobs(noisy(said["step 12"], 0.05), "step 12", said)
    assert finding.served is None
    assert "base" in finding.said


def test_an_adapter_that_changes_nothing_cannot_be_told_from_the_base() -> None:
    said = candidates(apart=0.0)
    assert by_logprobs(said["base"], "step 12", said).served is None


def test_greedy_text_is_told_by_how_far_it_is_the_same() -> None:
    host = ["I look up order 7.", "Blue."]
    said = {"step 12": ["I look up order 7.", "Blue."], "base": ["I refund it.", "Red"]}
    assert by_greedy_text(host, "step 12", said).served is True
    assert by_greedy_text(host, "base", said).served is False
    assert "step 12" in by_greedy_text(host, "base", said).said
    assert by_greedy_text(["No idea", "Nothing"], "step 12", said).served is False
    assert by_greedy_text(host, "step 12", {"step 12": host, "base": host}).served is None
