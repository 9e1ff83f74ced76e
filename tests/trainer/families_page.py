"""Writes docs/models.md from the table in families.py: `python -m tests.trainer.families_page`."""

from pathlib import Path

from gavel.trainer.policy.loading import NOT_SAMPLED, chooses_experts
from tests.trainer.families import ALL, FAMILIES, Family

PAGE = Path(__file__).parents[2] / "docs" / "models.md"

_HEAD = """\
# Base models

Any causal language model of transformers can be the base: a directory, or a model id of the Hugging Face hub. Each
family below is tested (`pytest tests/trainer/test_families.py`) on a tiny random model of transformers' own class
with a non-zero adapter, against a plain eager pass of transformers and PEFT over one sequence at a time: the
learner's log-probs (10⁻⁴ nats, float32) over sequences that share prefixes and exceed every window, the gradient of
every LoRA weight (5·10⁻⁴ of the largest), and the embedded engine's log-probs of what it samples and scores (10⁻⁴
nats).

- **Learner**: *shared* computes a prefix that several sequences share once; *one by one* every sequence by itself
  (exact, slower, and a warning says so), because a layer keeps a state that cannot fork, or attends in a way that
  cannot be exchanged.
- **Engine**: *batched* samples many conversations together in the embedded engine and reuses prefixes; *one by one*
  is for trying things out: take `--engine vllm`, whose log-probs are checked at registration and after every step.
- **LoRA**: the adapted layers. *All linear*: every linear layer of the text decoder; never the vocabulary head, what
  reads images, routers and gates. Where PEFT takes the names of dense layers for those of the experts, the attention
  alone.
- **Experts**: whether `--lora-experts` (`LoraSettings(experts=True)`) adapts the experts too, in PEFT's form for
  stacked weights (`target_parameters`). vLLM takes it with `--enable-mixed-moe-lora-format`, on a GPU only (read in
  vLLM 0.32, not run).
- **Chat format**: that of the [`renderers`](https://pypi.org/project/renderers/) library for the published instruct
  models; without one (–), the model's own chat template is continued on the sampled ids.

"""

_TAIL = """
A family that is not in the table gets the same checks from its config, and a proof at registration: engine, learner and
plain passes must agree on two turns of two conversations. Its sliding windows are not guessed: its sequences are
computed one by one.

Refused before weights are loaded: encoders and encoder-decoders, and by the embedded engine, which would sample them
wrongly, {refused}.
`make test-thorough` holds every other causal language model of transformers whose config can be made
small to this: exact, or refused in a sentence.

Dynamic NTK and longrope change RoPE with the length of a pass. The context of such a model ends at
`original_max_position_embeddings` (4,096 for Phi 3.5 and Phi 4 mini), within which nothing changes.

All of this runs on a CPU; [benchmarks](benchmarks.md#the-learner-on-a-gpu) says which families ran on a GPU. Made by
`python -m tests.trainer.families_page`.
"""


def page() -> str:
    alike: dict[tuple[str, ...], list[Family]] = {}
    for family in FAMILIES:
        alike.setdefault(_cells(family), []).append(family)
    rows = [
        "| families | learner, engine | LoRA | experts | chat format | notes |",
        "|---|---|---|---|---|---|",
        *(f"| {_names(families)} | {' | '.join(cells)} |" for cells, families in alike.items()),
    ]
    refused = ", ".join(f"`{kind}`" for kind in NOT_SAMPLED)
    return _HEAD + "\n".join(rows) + "\n" + _TAIL.format(refused=refused)


def _names(families: list[Family]) -> str:
    return ", ".join(f"{family.name} (`{family.model_type}`)" for family in families)


def _cells(family: Family) -> tuple[str, ...]:
    learner = f"one by one ({family.alone})" if family.alone else "shared"
    lora = "all linear" if family.lora == ALL else ", ".join(f"`{name}`" for name in family.lora)
    engine = "batched" if family.batched else "one by one"
    experts = "yes" if family.experts else "no" if chooses_experts(family.read_config()) else "–"
    renderer = f"`{family.renderer}`" if family.renderer else "–"
    return f"{learner}, {engine}", lora, experts, renderer, family.note or "–"


if __name__ == "__main__":
    PAGE.write_text(page())
