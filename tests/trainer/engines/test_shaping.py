"""Other distributions than the policy's."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gavel.trainer.engines.protocol import Shaping

LOGITS = st.lists(st.floats(-8, 8), min_size=3, max_size=12).map(torch.tensor)


@given(LOGITS, st.floats(0, 1), st.integers(0, 14), st.floats(0, 1))
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


def test_what_changes_nothing_is_not_asked():
    assert Shaping().asked() == {}
    assert Shaping(top_p=0.9, top_k=0).asked() == {"top_p": 0.9}
