"""Every family of base models against its own plain eager forward: learner, gradient, engine, and what is adapted."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from renderers import config_from_name

from gavel.trainer.config import LoraSettings, PolicySettings
from gavel.trainer.data.token_sequences import TokenSequence
from gavel.trainer.engines.kv_cache import slots_that_fit
from gavel.trainer.engines.protocol import Sampled
from gavel.trainer.engines.transformers import TransformersEngine
from gavel.trainer.learner.logprobs import trained_logprobs
from gavel.trainer.model import TrainableModel
from gavel.trainer.policy.loading import (
    BaseModelError,
    check_sampled_here,
    plain_logits,
    usable_context,
    why_alone,
    why_unbatched,
)
from gavel.trainer.policy.policy import Policy
from tests.limits import HANG_SECONDS
from tests.trainer.conftest import a_group, a_model, registered, request_for, sequence
from tests.trainer.families import ALL, BY_NAME, FAMILIES, Family
from tests.trainer.families_page import PAGE, page

pytestmark = pytest.mark.slow

ROUNDING = 1e-3
"""Of the largest gradient: float32 on one CPU rounds a gradient of OLMo 2 by 5.5e-4 of it, on others by less."""
NATS = 1e-4


def words(seed: int, count: int) -> list[int]:
    return torch.randint(3, 800, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


def spoken(prompt: list[int], said: list[int], temperature: float = 1.0) -> TokenSequence:
    return sequence(prompt, said, [-1.0] * len(said), temperature)


def forked() -> list[TokenSequence]:
    """A prompt longer than the windows, forks behind it and within a turn, and a sequence that shares nothing."""
    prompt, said = words(0, 21), words(1, 14)
    return [
        spoken(prompt, said, 0.7),
        spoken(prompt, said[:5] + words(2, 11)),
        spoken(prompt[:12] + words(3, 6), words(4, 5)),
        spoken(words(5, 3), words(6, 12)),
    ]


def plain_logprobs(model: Any, tokens: TokenSequence) -> torch.Tensor:
    ids = torch.tensor([tokens.token_ids])
    logits = plain_logits(model, ids)[0].float()
    places = [place for place, own in enumerate(tokens.sampled) if own]
    temperatures = torch.tensor([tokens.temperatures[place] for place in places])
    found = torch.log_softmax(logits[[place - 1 for place in places]] / temperatures[:, None], -1)
    return found.gather(-1, ids[0, places, None])[:, 0]


def adapted_layers(policy: Policy) -> set[str]:
    return {name for name, _ in policy.model.named_parameters() if ".lora_A" in name}


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_a_family_is_what_its_row_says(family, opened, tmp_path):
    own = opened(family)
    plain = assert_computed(family, own, tmp_path)
    assert_adapted(family, own)
    assert (why_unbatched(family.read_config(), own.max_context) is None) == family.batched
    assert_sampled(family, own, plain)


MIXTURES = [family for family in FAMILIES if family.experts]


@pytest.mark.parametrize("family", MIXTURES, ids=lambda family: family.name)
def test_the_experts_of_a_mixture_are_adapted_where_asked(family, opened, tmp_path):
    own = opened(family, experts=True)
    assert any(name.endswith("experts.lora_A.default.weight") for name in adapted_layers(own))
    plain = assert_computed(family, own, tmp_path)
    assert_sampled(family, own, plain)


def assert_computed(family: Family, own: Policy, directory: Path) -> Any:
    """The learner's log-probs and gradients are those of transformers and PEFT over the adapter's files, by their
    slowest ways, which is returned."""
    base = family.model(attn_implementation="eager", experts_implementation="eager")
    plain: Any = PeftModel.from_pretrained(base, str(directory), is_trainable=True).eval()

    batch = forked()
    assert max(len(tokens.token_ids) for tokens in batch) <= own.max_context
    assert (own.spans is None) == bool(family.alone)
    expected = torch.cat([plain_logprobs(plain, tokens) for tokens in batch])
    found = trained_logprobs(own, batch)
    torch.testing.assert_close(found, expected, atol=NATS, rtol=0)

    weights = torch.linspace(-1, 1, len(expected))
    wanted = torch.autograd.grad((expected * weights).sum(), [p for p in plain.parameters() if p.requires_grad])
    gradient = torch.autograd.grad((found * weights).sum(), own.parameters())
    largest = max(each.abs().max().item() for each in wanted)
    own.checkpoint_gradients(True)
    recomputed = torch.autograd.grad((trained_logprobs(own, batch) * weights).sum(), own.parameters())
    own.checkpoint_gradients(False)
    for one, again, other in zip(gradient, recomputed, wanted, strict=True):
        torch.testing.assert_close(one, other, atol=ROUNDING * largest, rtol=0)
        torch.testing.assert_close(again, other, atol=ROUNDING * largest, rtol=0)

    return plain


def assert_adapted(family: Family, own: Policy) -> None:
    names = adapted_layers(own)
    if family.lora != ALL:
        assert {name.split(".lora_A")[0].rpartition(".")[2] for name in names} == set(family.lora)
    elsewhere = [name for name in names if "vision" in name or "visual" in name or "lm_head" in name]
    assert not elsewhere
    if family.lora == ALL:
        linear = {name for name, module in own.decoder().named_modules() if type(module) is torch.nn.Linear}
        assert not [name for name in linear if "lora_" not in name and not name.endswith("base_layer")]


@contextmanager
def sampling(family: Family, own: Policy) -> Iterator[TransformersEngine]:
    engine = TransformersEngine(family.model(), slots=3, max_context=min(128, own.max_context))
    try:
        engine.publish(own, 1)
        yield engine
    finally:
        engine.close()


def two_turns(engine: TransformersEngine) -> Iterator[tuple[TokenSequence, Sampled]]:
    prompts = [words(0, 30), words(1, 5), words(0, 30)[:24] + words(2, 4)]
    for _ in range(2):
        futures = [engine.submit(request_for(prompt, seed=n)) for n, prompt in enumerate(prompts)]
        for n, future in enumerate(futures):
            sampled = future.result(timeout=HANG_SECONDS)
            tokens = spoken(prompts[n], sampled.token_ids)
            yield tokens, sampled
            prompts[n] = [*tokens.token_ids, 7, 8, 9]


@torch.no_grad()
def assert_sampled(family: Family, own: Policy, plain: Any) -> None:
    assert slots_that_fit(family.model(), own.max_context) >= 1
    with sampling(family, own) as engine:
        for tokens, sampled in two_turns(engine):
            expected = plain_logprobs(plain, tokens)
            torch.testing.assert_close(torch.tensor(sampled.logprobs), expected, atol=NATS, rtol=0)
            scored = torch.tensor(engine.score(tokens.token_ids))[-len(sampled.token_ids) :]
            torch.testing.assert_close(scored, expected, atol=NATS, rtol=0)


@pytest.mark.parametrize("family", [each for each in FAMILIES if each.renderer], ids=lambda family: family.name)
def test_the_chat_format_of_a_row_is_one_of_the_library(family):
    assert config_from_name(family.renderer) is not None


def test_a_context_ends_where_rope_begins_to_depend_on_its_length():
    for family in FAMILIES:
        assert usable_context(family.read_config()) == (256 if family.name == "Phi 4 mini" else 512)
        check_sampled_here(family.read_config())


def test_windows_of_an_unknown_family_are_not_guessed():
    config = BY_NAME["Mistral"].read_config()
    config.model_type = "mistral_of_tomorrow"
    assert why_alone(config) == why_unbatched(config, 64) == "its windows are not known here"
    assert why_unbatched(config, 8) is None


def written(family: Family, like: Policy, directory: Path, *, weights: bool, **settings: Any) -> TrainableModel:
    like.tokenizer.save_pretrained(directory)
    (family.model().save_pretrained if weights else family.read_config().save_pretrained)(directory)
    return a_model(base_model=str(directory), renderer="qwen3", **settings)


@pytest.mark.parametrize("name", ["Gemma 3", "Granite 4", "GPT-OSS", "Qwen3-MoE"])
async def test_a_step_of_a_whole_run_publishes_what_it_learned(tmp_path, policy, name):
    dtype = "bfloat16" if name == "Qwen3-MoE" else "float32"
    settings = {"lora": LoraSettings(experts=name in ("GPT-OSS", "Qwen3-MoE")), "policy": PolicySettings(dtype=dtype)}
    model = written(BY_NAME[name], policy, tmp_path / "base", weights=True, **settings)
    async with registered(tmp_path / "runs", model):
        result = await model.train([await a_group(model, [0.0, 0.5, 1.0])])
    assert result.trained
    if dtype == "float32":
        assert result.metrics["publish_gap"] < NATS
        assert result.metrics["tokens_outlying"] == 0
    else:  # a token near a tie has other experts
        assert result.metrics["publish_gap_mean"] < 0.02


EXPERTS = {"lora": LoraSettings(experts=True), "renderer": "qwen3"}


@pytest.mark.parametrize(
    ("name", "settings", "told"),
    [
        ("Qwen3.5", {"renderer": "qwen3", "sharded": True}, "cannot be sharded"),  # one sequence at a time
        ("Mistral", {}, "no exact renderer is known"),
        ("Qwen3", EXPERTS, "experts"),
        ("Granite 3", EXPERTS, "experts"),
    ],
)
def test_what_a_base_cannot_do_is_told_before_weights_are_loaded(name, settings, told, policy, tmp_path):
    model = written(BY_NAME[name], policy, tmp_path, weights=False)
    with pytest.raises(BaseModelError, match=told):
        Policy(model.base_model, **{"lora": LoraSettings(rank=2), "load": lambda *_: BY_NAME[name].model(), **settings})


def test_the_page_is_that_of_the_table():
    assert PAGE.read_text() == page()
