"""Every family of base models against its own plain eager forward: learner, gradient, engine, and what is adapted."""

import logging
import math
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from renderers import config_from_name
from transformers import AutoConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from gavel.trainer.backends.local import LocalBackend
from gavel.trainer.backends.proof import PublishError, SamplerProof
from gavel.trainer.config import LoraSettings, PolicySettings
from gavel.trainer.data.token_sequences import TokenSequence
from gavel.trainer.engines.kv_cache import slots_that_fit
from gavel.trainer.engines.protocol import EngineError, Sampled
from gavel.trainer.engines.transformers import TransformersEngine
from gavel.trainer.learner.logprobs import trained_logprobs
from gavel.trainer.model import TrainableModel
from gavel.trainer.policy.loading import (
    NOT_SAMPLED,
    BaseModelError,
    auto_class,
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


ADAPTED = [(family, False) for family in FAMILIES] + [(family, True) for family in FAMILIES if family.experts]


@pytest.mark.parametrize(
    ("family", "experts"), ADAPTED, ids=[f"{family.name}{', experts' * experts}" for family, experts in ADAPTED]
)
def test_a_family_is_what_its_row_says_and_its_experts_are_adapted_where_asked(family, experts, opened, tmp_path):
    own = opened(family, experts=experts)
    plain = assert_computed(family, own, tmp_path)
    if experts:
        assert any(name.endswith("experts.lora_A.default.weight") for name in adapted_layers(own))
    else:
        assert_adapted(family, own)
    assert (why_unbatched(family.read_config(), own.max_context) is None) == family.batched
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
    with closing(TransformersEngine(family.model(), slots=3, max_context=min(128, own.max_context))) as engine:
        engine.publish(own, 1)
        yield engine


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


def test_a_context_ends_where_rope_depends_on_its_length_unknown_windows_are_not_guessed_and_the_page_is_the_table():
    assert PAGE.read_text() == page()
    assert f"sample them\nwrongly, {', '.join(f'`{kind}`' for kind in NOT_SAMPLED)}." in PAGE.read_text()
    for family in FAMILIES:
        assert usable_context(family.read_config()) == (256 if family.name == "Phi 4 mini" else 512)
        check_sampled_here(family.read_config())
        assert not family.renderer or config_from_name(family.renderer) is not None
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


ROUGHLY = 5e-4
"""Float32 rounds MiniCPM 3 by 1e-4."""
_MOST_PARAMETERS = 20_000_000

_STATES: dict[str, Any] = {"mamba_d_state": 8, "num_key_value_heads": 4, "head_dim": None}
_LATENT: dict[str, Any] = {"num_key_value_heads": 4, "q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8}
_LATENT |= {"qk_nope_head_dim": 8, "v_head_dim": 8, "head_dim": None}
_BAMBA = {"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 8, "mamba_n_groups": 1, "mamba_chunk_size": 16}
_JAMBA = {"num_hidden_layers": 4, "attn_layer_period": 2, "attn_layer_offset": 1, "num_experts": 4}
_NEO = {"attention_types": [[["global", "local"], 1]], "num_layers": 2, "num_hidden_layers": None, "window_size": 8}
_MINIMAX = {"num_local_experts": 4, "layer_types": ["linear_attention", "full_attention"]}
_ZAMBA = {"attention_head_dim": 16, "num_hidden_layers": 3, "attn_layer_period": 3, "attn_layer_offset": 1}
_ZAMBA_2 = {"num_hidden_layers": 3, "layers_block_type": ["mamba", "hybrid", "mamba"], "hybrid_layer_ids": [1]}
_ZAMBA_2 |= {"mamba_headdim": 16, "n_mamba_heads": 4, "mamba_ngroups": 1, "num_mem_blocks": 1, "chunk_size": 16}
SHAPES: dict[str, dict[str, Any]] = {
    "bamba": _BAMBA | {"attn_layer_indices": [1]},
    "codegen": {"rotary_dim": 8, "n_embd": 32, "n_head": 4},
    "falcon": {"head_dim": None},
    "gpt_neo": _NEO,
    "gptj": {"rotary_dim": 8},
    "jamba": _JAMBA | {"num_experts_per_tok": 2},
    "minicpm3": _LATENT,
    "minimax": _MINIMAX | {"num_experts_per_tok": 2},
    "opt": {"ffn_dim": 48, "word_embed_proj_dim": 32},
    "recurrent_gemma": {"num_hidden_layers": 3, "lru_width": 32, "attention_window_size": 8},
    "youtu": _LATENT,
    "zamba": _STATES | _ZAMBA | {"n_mamba_heads": 2, "mamba_dt_rank": 4},
    "zamba2": _STATES | _ZAMBA_2 | {"attention_head_dim": 16, "mamba_expand": 2},
}


def small(kind: str) -> Family:
    family = Family(kind, kind, SHAPES.get(kind, {}))
    try:
        config = family.read_config()
        with torch.device("meta"):
            size = sum(each.numel() for each in auto_class(config).from_config(config).parameters())
    except Exception as error:  # each type checks its config in its own way
        pytest.skip(f"{type(error).__name__}: {error}")
    if size > _MOST_PARAMETERS:
        pytest.skip(f"{size:,} parameters")
    return family


def prove(engine: TransformersEngine, own: Policy) -> None:
    @torch.no_grad()
    def learned(*batch: TokenSequence) -> torch.Tensor:
        return trained_logprobs(own, batch)

    SamplerProof(engine, own, learned, learned, adapted=False)


@torch.no_grad()
def sampling_gap(engine: TransformersEngine, plain: Any) -> float:
    try:
        turns = [*two_turns(engine)]
    except EngineError:
        return math.inf
    return max((torch.tensor(said.logprobs) - plain_logprobs(plain, each)).abs().max().item() for each, said in turns)


@pytest.mark.parametrize("kind", sorted(NOT_SAMPLED))
def test_what_the_embedded_engine_is_said_not_to_sample_it_samples_wrongly(kind, opened, tmp_path):
    family = small(kind)
    with pytest.raises(BaseModelError, match="embedded engine cannot sample") as refusal:
        check_sampled_here(family.read_config())
    assert "--engine vllm" in refusal.value.remedy
    own = opened(family)
    plain: Any = PeftModel.from_pretrained(family.model(), str(tmp_path)).eval()
    with sampling(family, own) as engine:
        assert sampling_gap(engine, plain) > 1e-4


@pytest.mark.parametrize("kind", ["cpmant", "minimax", "openai-gpt", "recurrent_gemma", "rwkv", "xlstm"])
def test_the_proof_at_registration_finds_what_the_config_would_not_tell(kind, opened):
    family = small(kind)
    own = opened(family)
    told = pytest.raises((PublishError, BaseModelError), match=r"does not fit|cannot sample")
    with told as error, sampling(family, own) as engine:
        slots_that_fit(family.model(), 64)
        prove(engine, own)
    assert "--engine vllm" in error.value.remedy


@pytest.mark.parametrize("kind", ["jamba", "bert", "whisper"])
async def test_a_known_misfit_is_refused_before_weights_are_loaded(kind: str, tmp_path: Path, policy: Policy) -> None:
    AutoConfig.for_model(kind).save_pretrained(tmp_path / "base")  # there are no weights
    policy.tokenizer.save_pretrained(tmp_path / "base")
    model = a_model(base_model=str(tmp_path / "base"), renderer="qwen3")
    async with LocalBackend(tmp_path / "runs") as backend:
        with pytest.raises(BaseModelError, match=r"embedded engine cannot sample|not a causal language model"):
            await model.register(backend)


@pytest.mark.parametrize("kind", ["opt", "ctrl", "recurrent_gemma", "laguna"])
def test_the_learner_is_exact_where_this_was_once_wrong(kind, opened, tmp_path):
    family = small(kind)
    own = opened(family)
    plain: Any = PeftModel.from_pretrained(family.model(), str(tmp_path)).eval()
    with torch.no_grad():
        expected = torch.cat([plain_logprobs(plain, tokens) for tokens in forked()])
        torch.testing.assert_close(trained_logprobs(own, forked()), expected, atol=ROUGHLY, rtol=0)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "kind", sorted(set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES) - {each.model_type for each in FAMILIES})
)
def test_every_type_of_transformers_is_exact_or_refused(kind, opened, tmp_path, caplog):
    caplog.set_level(logging.ERROR)
    family = small(kind)
    try:
        check_sampled_here(family.read_config())
        own = opened(family)
    except BaseModelError:
        return
    plain: Any = PeftModel.from_pretrained(family.model(), str(tmp_path)).eval()
    try:
        with torch.no_grad():
            expected = torch.cat([plain_logprobs(plain, tokens) for tokens in forked()])
    except RuntimeError as error:  # of a shape that this type does not have
        pytest.skip(str(error))
    with sampling(family, own) as engine:
        try:
            prove(engine, own)
        except PublishError:
            return
        with torch.no_grad():
            torch.testing.assert_close(trained_logprobs(own, forked()), expected, atol=ROUGHLY, rtol=0)
        assert sampling_gap(engine, plain) < ROUGHLY
