"""The table of docs/models.md, made from that of families.py: `python -m tests.trainer.families_page` writes it."""

import re
from pathlib import Path
from typing import Any

from tests.trainer.families import ALL, ATTENTION, FAMILIES, LATENT_ATTENTION, MLP, Family

PAGE = Path(__file__).parents[2] / "docs" / "models.md"


def page() -> str:
    """With the table as it should be."""
    alike: dict[tuple[str, ...], list[Family]] = {}
    for family in FAMILIES:
        alike.setdefault(_cells(family), []).append(family)
    rows = [f"| {_names(families)} | {' | '.join(cells)} |" for cells, families in alike.items()]
    table = "\n".join(["| families | learner, engine | LoRA | experts |", "|---|---|---|---|", *rows])
    return re.sub(r"^\| families \|.*?\n(?=\n)", lambda _: f"{table}\n", PAGE.read_text(), flags=re.S | re.M)


def _names(families: list[Family]) -> str:
    formats = [f"; {family.renderer}" if family.renderer else "" for family in families]
    names = [f"{family.name} (`{family.model_type}`" for family in families]
    return ", ".join(f"{name}{form})" for name, form in zip(names, formats, strict=True))


def _cells(family: Family) -> tuple[str, ...]:
    learner = f"one by one ({family.alone})" if family.alone else "shared"
    engine = "batched" if family.batched else "one by one"
    experts = "yes" if family.experts else "no" if _chooses_experts(family.read_config()) else "–"
    return f"{learner}, {engine}", _layers(family.lora), experts


def _chooses_experts(config: Any) -> bool:
    text = config.get_text_config()
    counts = (getattr(text, name, None) or 0 for name in ("num_experts", "num_local_experts", "n_routed_experts"))
    return max(counts) > 1


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
