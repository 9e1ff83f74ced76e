"""Writes docs/models.md from the table in families.py: `python -m tests.trainer.families_page`."""

from pathlib import Path

from gavel.trainer.policy.loading import NOT_SAMPLED, chooses_experts
from tests.trainer.families import ALL, FAMILIES, Family

PAGE = Path(__file__).parents[2] / "docs" / "models.md"

_HEAD = """\
# Base models

Any causal language model of transformers can be the base: a directory, or a model id of the Hugging Face hub. Each
family below is tested (`pytest tests/trainer/test_families.py`) on a tiny random model of transformers' own class,
with an adapter that is not zero, against a plain eager forward pass of transformers and PEFT over one sequence at a
time:

- the learner's log-probs, to 10⁻⁴ nats in float32, over sequences that share prefixes and are longer than every
  window; and the gradient of every LoRA weight, to 5·10⁻⁴ of the largest;
- the embedded engine's log-probs of what it samples, over two turns of conversations that share prefixes, and of
  what it is asked to score, to 10⁻⁴ nats.

The columns:

- **Learner**: *shared* computes a prefix that several sequences share once. *One by one* computes every sequence by
  itself, because a layer keeps a state that cannot fork, or attends in a way that cannot be exchanged: exact, and
  slower. A warning says so when the model is registered.
- **Engine**: *batched* samples many conversations together in the embedded engine, and reuses prefixes. *One by one*
  computes one conversation after the other, with a cache of transformers' own: exact and slow, for trying things out;
  `--engine vllm` is the engine for such models. The vLLM engine is not part of these tests: that its log-probs are the
  learner's is checked when a model is registered, and after every step.
- **LoRA**: the adapted layers. *All linear*: every linear layer of the text decoder. Never adapted are the
  vocabulary head, what reads images, routers and gates. Where PEFT takes the names of dense layers for those of the
  experts (DeepSeek, GLM 4.5, …), the attention alone is adapted.
- **Experts**: whether `--lora-experts` (`LoraSettings(experts=True)`) adapts the experts, too, each with factors of its
  own, in PEFT's form for stacked weights (`target_parameters`). Off by default: the adapter grows by the number of
  experts. It is held to the same as the other layers, and merged exports have its log-probs. vLLM takes this form
  with `--enable-mixed-moe-lora-format`, with which it is started, and on a GPU only; this was read in vLLM 0.32 and not
  run, but what vLLM computes is proven at registration and after each step.
- **Chat format**: the format of the [`renderers`](https://pypi.org/project/renderers/) library for the family's
  published instruct models; without one (–), the model's own chat template is continued on the sampled ids.

"""

_TAIL = """
A family that is not in the table gets the same checks from its config, and a proof at registration: two turns of two
conversations are sampled at once, and engine, learner and plain forward passes must agree on each turn, and on the two
conversations as sequences that share a prefix. Sliding windows of a family that is not in the table are not guessed:
its sequences are computed one by one.

Refused by the config, before weights are loaded: encoders and encoder-decoders, and by the embedded engine, which would
sample them wrongly, {refused} (`--engine vllm`
samples those of them that vLLM serves). `make test-thorough` holds every other causal language model of transformers
whose config can be made small to this: exact, or refused in a sentence.

Dynamic NTK and longrope change RoPE with the length of a pass, so a token's log-prob would depend on what is
computed beside it. The context of such a model ends at the length it was first trained for
(`original_max_position_embeddings`; 4,096 for Phi 3.5 and Phi 4 mini), within which nothing changes.

All of this runs on a CPU; [benchmarks](benchmarks.md#the-learner-on-a-gpu) says which families ran on a GPU.

This page is made by `python -m tests.trainer.families_page`.
"""


def page() -> str:
    rows = [
        "| family | `model_type` | learner | engine | LoRA | experts | chat format | notes |",
        "|---|---|---|---|---|---|---|---|",
    ]
    refused = ", ".join(f"`{kind}`" for kind in NOT_SAMPLED)
    return _HEAD + "\n".join([*rows, *map(_row, FAMILIES)]) + "\n" + _TAIL.format(refused=refused)


def _row(family: Family) -> str:
    learner = f"one by one ({family.alone})" if family.alone else "shared"
    lora = "all linear" if family.lora == ALL else ", ".join(f"`{name}`" for name in family.lora)
    renderer = f"`{family.renderer}`" if family.renderer else "–"
    engine = "batched" if family.batched else "one by one"
    experts = "yes" if family.experts else "no" if chooses_experts(family.read_config()) else "–"
    cells = (family.name, f"`{family.model_type}`", learner, engine, lora, experts, renderer, family.note or "–")
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    PAGE.write_text(page())
