"""Log-probs of a batch against the full logits of one sequence at a time."""

import pytest
import torch

from tests.trainer.conftest import full_logprobs, sequence
from trainer.scoring import trained_logprobs
from trainer.tokens import TokenSequence

VOCABULARY = 832


def random_sequence(seed: int, length: int) -> TokenSequence:
    """Turns of either side, each sampled token at a temperature of its own."""
    generator = torch.Generator().manual_seed(seed)
    sampled = [False, *(torch.rand(length - 1, generator=generator) < 0.5).tolist()]
    sampled[-1] = True
    temperatures = (0.5 + torch.rand(length, generator=generator)).tolist()
    return TokenSequence(
        torch.randint(0, VOCABULARY, (length,), generator=generator).tolist(),
        sampled,
        [-1.0 if own else 0.0 for own in sampled],
        [temperature if own else 1.0 for own, temperature in zip(sampled, temperatures, strict=True)],
    )


def obvious(policy, tokens: TokenSequence) -> list[float]:
    with torch.no_grad():
        logits = policy.model(input_ids=torch.tensor([tokens.token_ids])).logits[0]
    return [
        torch.log_softmax(logits[place - 1] / tokens.temperatures[place], -1)[tokens.token_ids[place]].item()
        for place in range(len(tokens.token_ids))
        if tokens.sampled[place]
    ]


@pytest.fixture(scope="module")
def adapted(policy):
    """The embedded policy with an adapter that does something, for as long as this module runs."""
    before = {name: value.clone() for name, value in policy.model.state_dict().items() if "lora_" in name}
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    yield policy
    policy.model.load_state_dict(before, strict=False)


@pytest.mark.parametrize("lengths", [[2], [9, 9], [40, 3, 17, 2], [120, 60]])
def test_a_batch_scores_as_its_sequences_do_one_by_one(adapted, lengths):
    batch = [random_sequence(seed, length) for seed, length in enumerate(lengths)]
    expected = [value for tokens in batch for value in obvious(adapted, tokens)]
    with torch.no_grad():
        found = trained_logprobs(adapted, batch)
    assert found.shape == (sum(tokens.trained_tokens for tokens in batch),)
    assert found.tolist() == pytest.approx(expected, abs=2e-5)


def test_the_adapter_takes_part_and_can_be_left_away(adapted, embedded_base):
    tokens = sequence([1, 5, 9], [7, 8, 2], [-1.0] * 3)
    base = full_logprobs(embedded_base, tokens.token_ids)[2:].tolist()
    with torch.no_grad():
        with adapted.model.disable_adapter():
            assert trained_logprobs(adapted, [tokens]).tolist() == pytest.approx(base, abs=1e-5)
        assert trained_logprobs(adapted, [tokens]).tolist() != pytest.approx(base, abs=1e-2)


def test_gradients_reach_the_adapter_and_nothing_else(adapted):
    trained_logprobs(adapted, [random_sequence(0, 20), random_sequence(1, 8)]).sum().backward()
    assert all(parameter.grad is not None for parameter in adapted.parameters())
    others = [parameter for parameter in adapted.model.parameters() if not parameter.requires_grad]
    assert all(parameter.grad is None for parameter in others)
    for parameter in adapted.parameters():
        parameter.grad = None
