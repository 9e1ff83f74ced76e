import pytest
import torch
from transformers import DynamicCache, Qwen3Config, Qwen3ForCausalLM

from gavel.trainer.cached_pass import cached
from gavel.trainer.engines.passes import attend_grouped


@pytest.mark.parametrize("key_heads", [1, 2, 4])
def test_heads_that_share_keys_attend_as_they_do_apart(key_heads):
    torch.manual_seed(0)
    shape = {"vocab_size": 40, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "head_dim": 8}
    model = Qwen3ForCausalLM(Qwen3Config(**shape, num_attention_heads=4, num_key_value_heads=key_heads)).eval()
    ids = torch.randint(40, (3, 9))
    with torch.no_grad():
        plain = model(input_ids=ids).logits
        attend_grouped(model.get_decoder())
        cache = DynamicCache(config=model.config)
        begun = model(input_ids=ids[:, :5], **cached(model, cache))
        assert torch.allclose(begun.logits, plain[:, :5], atol=1e-5)
        for place in range(5, 9):
            seen = torch.ones(3, 1, 1, place + 1, dtype=torch.bool)
            step = model(
                input_ids=ids[:, place : place + 1],
                position_ids=torch.full((3, 1), place),
                attention_mask=seen,
                **cached(model, cache),
            )
            assert torch.allclose(step.logits[:, 0], plain[:, place], atol=1e-5)


def test_a_model_that_attends_in_its_own_way_keeps_it():
    config = Qwen3Config(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, vocab_size=8, intermediate_size=8)
    config._attn_implementation = "flex_attention"
    model = Qwen3ForCausalLM(config)
    attend_grouped(model.get_decoder())
    assert model.config._attn_implementation == "flex_attention"
