"""Writes docs/models.md from the table in families.py: `python -m tests.trainer.families_page`."""

from pathlib import Path

from gavel.trainer.policy.loading import NOT_SAMPLED, chooses_experts
from tests.trainer.families import ALL, ATTENTION, FAMILIES, LATENT_ATTENTION, MLP, Family

PAGE = Path(__file__).parents[2] / "docs" / "models.md"

_HEAD = """\
# Base models

Any causal language model of transformers can be the base: a directory, or a model id of the Hugging Face hub. Models
that see images are trained on text alone. Each family below is tested (`pytest tests/trainer/test_families.py`) on a
tiny random model with a non-zero adapter, against a plain pass of transformers and PEFT over one sequence at a time:
log-probs of learner and embedded engine within 10⁻⁴ nats (float32), gradients within 5·10⁻⁴ of the largest.

- **Learner**: *shared* computes a prefix that several sequences share once; *one by one* is exact, too, and slower.
- **Engine**: *batched* samples many conversations together in the embedded engine; for *one by one* take
  `--engine vllm`.
- **LoRA**: the adapted layers. *All linear*: every linear layer of the text decoder, without the vocabulary head,
  routers and gates. *Attention*: `q_proj`, `k_proj`, `v_proj`, `o_proj`. *Latent attention*: `q_a_proj`, `q_b_proj`,
  `kv_a_proj_with_mqa`, `kv_b_proj`, `o_proj`. *MLP*: `gate_proj`, `up_proj`, `down_proj` of dense and shared experts.
- **Experts**: whether `--lora-experts` (`LoraSettings(experts=True)`) adapts the experts too. vLLM takes it with
  `--enable-mixed-moe-lora-format`, on a GPU only (read in vLLM 0.32, not run).
- **Chat format** (after the type): that of the [`renderers`](https://pypi.org/project/renderers/) library for the
  published instruct models; without one, the model's own chat template is continued on the sampled ids.

"""

_TAIL = """
Any other family gets the same checks from its config, and a proof at registration: engine, learner and plain passes
must agree on two turns of two conversations. Its sequences are computed one by one if it has sliding windows.

Refused before weights are loaded: encoders and encoder-decoders, and by the embedded engine, which would sample them
wrongly, {refused}.
`make test-thorough` tests every other causal language model of transformers: exact, or refused with a message.

Dynamic NTK and longrope change RoPE with the length of a pass, so the context of such a model ends at
`original_max_position_embeddings` (4,096 for Phi 3.5 and Phi 4 mini).

All of this runs on a CPU; [benchmarks](benchmarks.md#the-learner-on-a-gpu) says which families ran on a GPU. Made by
`python -m tests.trainer.families_page`.
"""


def page() -> str:
    alike: dict[tuple[str, ...], list[Family]] = {}
    for family in FAMILIES:
        alike.setdefault(_cells(family), []).append(family)
    rows = [
        "| families | learner, engine | LoRA | experts |",
        "|---|---|---|---|",
        *(f"| {_names(families)} | {' | '.join(cells)} |" for cells, families in alike.items()),
    ]
    refused = ", ".join(f"`{kind}`" for kind in NOT_SAMPLED)
    return _HEAD + "\n".join(rows) + "\n" + _TAIL.format(refused=refused)


def _names(families: list[Family]) -> str:
    formats = [f"; {family.renderer}" if family.renderer else "" for family in families]
    return ", ".join(
        f"{family.name} (`{family.model_type}`{form})" for family, form in zip(families, formats, strict=True)
    )


def _cells(family: Family) -> tuple[str, ...]:
    learner = f"one by one ({family.alone})" if family.alone else "shared"
    engine = "batched" if family.batched else "one by one"
    experts = "yes" if family.experts else "no" if chooses_experts(family.read_config()) else "–"
    return f"{learner}, {engine}", _layers(family.lora), experts


def _layers(lora: tuple[str, ...] | str) -> str:
    if lora == ALL:
        return "all linear"
    said, left = [], [*lora]
    for word, layers in (("latent attention", LATENT_ATTENTION), ("attention", ATTENTION), ("MLP", MLP)):
        if set(layers) <= set(left):
            said.append(word)
            left = [name for name in left if name not in layers]
    return ", ".join(said + [f"`{name}`" for name in left])


if __name__ == "__main__":
    PAGE.write_text(page())
