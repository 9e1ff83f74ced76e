"""Log-probs of a batch against the full logits of one sequence at a time."""

import pytest
import torch

from gavel.trainer.data.token_sequences import TokenSequence
from gavel.trainer.learner.logprobs import trained_logprobs, trained_scores

pytestmark = pytest.mark.slow

VOCABULARY = 832


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


def conversation(*turns: tuple[int, list[int]]) -> TokenSequence:
    """Tool results (0) and sampled turns (their temperature in tenths)."""
    tokens = TokenSequence()
    for tenths, ids in turns:
        tokens.extend(list(ids), logprobs=[-1.0] * len(ids) if tenths else None, temperature=tenths / 10 or 1.0)
    return tokens


def ragged_group() -> list[TokenSequence]:
    """Members that fork in the prompt, within a turn and after a tool result; two alike; one that another continues."""
    generator = torch.Generator().manual_seed(7)

    def words(count: int) -> list[int]:
        return torch.randint(0, VOCABULARY, (count,), generator=generator).tolist()

    prompt, said, tool, answer = words(30), words(11), words(9), words(6)
    first = conversation((0, prompt), (10, said), (0, tool), (10, answer))
    return [
        first,
        conversation((0, prompt), (10, said[:5] + words(8)), (0, words(13)), (10, words(4))),
        conversation((0, prompt), (10, said), (0, tool), (10, words(17))),
        conversation((0, prompt), (10, said), (0, tool), (10, answer), (0, tool), (10, words(3))),
        conversation((0, prompt), (10, said), (0, words(2)), (10, words(40))),
        conversation((0, prompt), (10, said), (0, tool), (10, answer)),
        conversation((0, prompt), (7, said), (0, tool), (7, answer)),
        conversation((0, prompt), (10, said)),
        conversation((0, prompt[:12] + words(5)), (10, words(9))),
        conversation((0, words(3)), (10, words(2))),
    ]


def obvious_scores(policy, batch: list[TokenSequence]) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probs and entropies, each sequence by a forward pass of its own."""
    logprobs, entropies = [], []
    for tokens in batch:
        logits = policy.model(input_ids=torch.tensor([tokens.token_ids])).logits[0]
        for place in (place for place, own in enumerate(tokens.sampled) if own):
            row = torch.log_softmax(logits[place - 1] / tokens.temperatures[place], -1)
            logprobs.append(row[tokens.token_ids[place]])
            entropies.append(-(row.exp() * row).sum())
    return torch.stack(logprobs), torch.stack(entropies)


def gradient_of(policy, logprobs: torch.Tensor) -> torch.Tensor:
    loss = (logprobs * torch.linspace(-1, 1, len(logprobs))).mean()
    return torch.cat([each.flatten().double() for each in torch.autograd.grad(loss, policy.parameters())])


@pytest.mark.parametrize("checkpointing", [False, True])
def test_logprobs_entropies_and_gradient_are_those_of_one_sequence_at_a_time(adapted, checkpointing):
    expected, expected_entropies = obvious_scores(adapted, ragged_group())
    wanted = gradient_of(adapted, expected)
    adapted.checkpoint_gradients(checkpointing)
    logprobs, entropies = trained_scores(adapted, ragged_group())
    found = gradient_of(adapted, logprobs)
    adapted.checkpoint_gradients(False)
    torch.testing.assert_close(logprobs, expected, atol=1e-4, rtol=0)
    torch.testing.assert_close(entropies, expected_entropies.detach(), atol=1e-4, rtol=0)
    assert torch.cosine_similarity(found, wanted, 0).item() > 0.99999
    assert found.norm().item() == pytest.approx(wanted.norm().item(), rel=1e-4)


def test_checkpointing_computes_the_layers_again_and_changes_nothing_else(adapted):
    calls = []
    layer = adapted.decoder().layers[0].mlp
    hook = layer.register_forward_pre_hook(lambda *_: calls.append(layer.training))
    for checkpointing, passes in ((False, 1), (True, 2)):
        calls.clear()
        adapted.checkpoint_gradients(checkpointing)
        trained_logprobs(adapted, ragged_group()[:1]).sum().backward()
        assert calls == [False] * passes
    adapted.checkpoint_gradients(False)
    hook.remove()
    for parameter in adapted.parameters():
        parameter.grad = None


def test_each_shared_token_goes_through_the_model_once(adapted):
    batch, widths = ragged_group(), []
    hook = adapted.decoder().layers[0].register_forward_pre_hook(lambda _, given: widths.append(given[0].shape))
    with torch.no_grad():
        trained_logprobs(adapted, batch)
    hook.remove()
    prefixes = {tuple(t.token_ids[: end + 1]) for t in batch for end in range(len(t.token_ids))}
    assert widths == [(1, len(prefixes), 96)]
