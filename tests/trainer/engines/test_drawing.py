"""The next token: of the policy's distribution, of a shaped one, or among those that a grammar allows."""

from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gavel.trainer.engines.grammar import GrammarError
from gavel.trainer.engines.protocol import SamplingRequest, Shaping
from gavel.trainer.engines.transformers import Draw, draw_tokens

LOGITS = torch.tensor([2.0, 1.0, 0.5, -1.0, 0.0])


class Only:
    """A constraint that allows some tokens."""

    def __init__(self, *tokens: int) -> None:
        self.tokens = tokens
        self.taken: list[int] = []

    def take(self, token: int) -> bool:
        if token in self.tokens:
            self.taken.append(token)
        return token in self.tokens

    def allowed(self) -> np.ndarray:
        if not self.tokens:
            raise GrammarError("nothing fits")
        return np.isin(np.arange(len(LOGITS)), self.tokens)


@dataclass
class Row:
    request: SamplingRequest
    constraint: Only | None = None
    token_ids: list[int] = field(default_factory=list)


def row(seed: int = 0, *, only: tuple[int, ...] | None = None, temperature: float = 1.0, **asked) -> Row:
    request = SamplingRequest([1], frozenset(), 8, temperature, seed, **asked)
    return Row(request, None if only is None else Only(*only))


def draw(*rows: Row) -> list[Draw]:
    return draw_tokens(LOGITS.repeat(len(rows), 1), rows)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_tokens_under_a_grammar_are_those_of_the_policy_among_those_that_fit(temperature):
    rows = [row(seed, only=(1, 3, 4), temperature=temperature) for seed in range(1500)]
    drawn = draw(*rows)
    shares = Counter(each.token for each in drawn)
    masked = torch.log_softmax((LOGITS / temperature)[[1, 3, 4]], -1)
    policy = torch.log_softmax(LOGITS / temperature, -1)
    for token, value in zip((1, 3, 4), masked.tolist(), strict=True):
        assert shares[token] / len(rows) == pytest.approx(np.exp(value), abs=0.05)
        for each in drawn:
            if each.token == token:
                assert each.logprob == pytest.approx(value if each.again else float(policy[token]), abs=1e-5)
    assert sum(each.again for each in drawn) / len(rows) == pytest.approx(float(policy[[0, 2]].exp().sum()), abs=0.05)
    assert [each.constraint.taken for each in rows] == [[each.token] for each in drawn]


def test_the_likeliest_tokens_are_those_of_the_distribution_that_was_drawn_from():
    plain, cut, other = draw(
        row(only=None, top_logprobs=2),
        row(only=(3, 4), top_logprobs=3),
        row(only=None, top_logprobs=4, shaping=Shaping(top_k=1)),
    )
    policy = torch.log_softmax(LOGITS, -1)
    assert plain.likeliest == [(0, pytest.approx(float(policy[0]))), (1, pytest.approx(float(policy[1])))]
    assert [token for token, _ in cut.likeliest] == ([4, 3] if cut.again else [0, 1, 2])
    assert other.likeliest == [(0, pytest.approx(0.0))]


def test_a_tail_that_was_cut_off_comes_back_where_nothing_else_fits():
    (drawn,) = draw(row(only=(3,), shaping=Shaping(top_k=1)))
    assert (drawn.token, drawn.again, drawn.logprob) == (3, True, 0.0)


def test_a_grammar_that_leaves_nothing_fails_its_own_row_alone():
    stuck, other = draw_tokens(LOGITS.repeat(2, 1), [row(only=()), row(3)])
    assert isinstance(stuck, GrammarError)
    assert isinstance(other, Draw)


SOME_LOGITS = st.lists(st.floats(-8, 8), min_size=3, max_size=12).map(torch.tensor)


@given(SOME_LOGITS, st.floats(0, 1), st.integers(0, 14), st.floats(0, 1))
def test_what_is_left_is_a_distribution_with_the_likeliest_token(logits, top_p, top_k, min_p):
    logprobs = torch.log_softmax(logits, -1)
    shaped = Shaping(top_p=top_p, top_k=top_k, min_p=min_p).logprobs(logprobs)
    assert shaped.exp().sum().item() == pytest.approx(1, abs=1e-4)
    assert torch.isfinite(shaped[logprobs.argmax()])
    kept = torch.isfinite(shaped)
    assert logprobs[kept].min() >= logprobs[~kept].max() if (~kept).any() else True


@pytest.mark.parametrize(
    ("shaping", "kept"),
    [
        (Shaping(), [0, 1, 2, 3]),
        (Shaping(top_p=0.0), [0]),
        (Shaping(top_p=0.5), [0]),
        (Shaping(top_p=0.51), [0, 1]),
        (Shaping(top_p=0.79), [0, 1]),
        (Shaping(top_k=3), [0, 1, 2]),
        (Shaping(min_p=0.31), [0, 1]),
    ],
)
def test_the_tail_is_cut_where_openai_and_vllm_cut_it(shaping, kept):
    logprobs = torch.tensor([0.5, 0.3, 0.15, 0.05], dtype=torch.float64).log()
    assert torch.isfinite(shaping.logprobs(logprobs)).nonzero()[:, 0].tolist() == kept


def test_penalties_count_what_was_said_and_biases_add():
    logits = torch.tensor([2.0, -2.0, 1.0, 0.0])
    shaping = Shaping(presence_penalty=0.5, frequency_penalty=0.25, logit_bias={3: 5.0, 99: 1.0})
    assert shaping.logits(logits, [2], [0, 0, 1]).tolist() == [1.0, -2.75, 1.0, 5.0]
    repeated = Shaping(repetition_penalty=2.0)
    assert repeated.logits(logits, [0], [1]).tolist() == [1.0, -4.0, 1.0, 0.0]
    assert logits.tolist() == [2.0, -2.0, 1.0, 0.0]
