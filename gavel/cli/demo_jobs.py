"""The jobs of `gavel demo`: two desks for tiny embedded policies, one sentence for a real language model.

Imports no model library.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from gavel.cli.settings import STAND_IN
from gavel.trainer.config import LoopConfig, LoraSettings, TrainConfig
from gavel.trainer.embedded import BOOKING_POLICY, EMBEDDED_POLICY
from gavel.trainer.embedded.small_model import SMALL_MODEL

LIKELIHOOD = "likelihood"
"""The judge without a key of a job whose rubric the stand-in cannot check."""

DemoScenario = Literal["returns_desk", "booking_desk"]
_AT_A_DESK = LoopConfig(max_tokens=64, concurrency=256)


@dataclass(frozen=True, slots=True)
class DemoJob:
    """What is trained on what, and what is said of it."""

    scenario: str
    name: str
    """As the headline and the name of the run have it."""
    base_model: str
    judge: str
    """The judge where no other is named."""
    steps: int
    loop: LoopConfig
    """All but steps and seed."""
    train: TrainConfig
    """All but the schedule."""
    lora: LoraSettings
    measures: Mapping[str, str]
    """Measures shown beside success, and their labels."""
    learned: str
    """What is said of a run that gained."""
    caveat: str
    judge_caveat: str
    """What is said of `judge`."""
    habit: str | None = None
    """The measure that is low where the habit shows that `learned` names."""
    decimals: Mapping[str, int] = field(default_factory=dict[str, int])
    """Digits of a measure, where they are not two."""
    success: str = "held-out success"
    slots: int = 256
    max_context: int = 4096
    threads: int | None = 1
    """Of the tensor library, which splits what a tiny model computes at a loss; None: its own choice."""
    rollout_tokens: int = 200
    """What `--dry-run` assumes."""
    command: str = "gavel demo"


RETURNS_DESK = DemoJob(
    scenario="returns_desk",
    name="returns desk",
    base_model=EMBEDDED_POLICY,
    judge=STAND_IN,
    steps=20,
    loop=_AT_A_DESK.model_copy(update={"tasks_per_step": 8}),
    train=TrainConfig(learning_rate=4e-3),
    lora=LoraSettings(),
    measures={"looked_before_acting": "looked before acting", "turns": "turns"},
    habit="looked_before_acting",
    learned=(
        "The base policy knows how to do this job, but its noisy demonstrations gave it a bad habit: it acts without "
        "looking. The judge's reward removed the habit. Only LoRA weights changed, and no reward function was written."
    ),
    caveat=(
        "The policy has a few hundred thousand parameters and learned nothing but this job. The judge read the "
        "transcripts and the rubric, never the true outcome, which is measured here for comparison only."
    ),
    judge_caveat=(
        "It was the stand-in, which checks written rules and is no language model; GAVEL_JUDGE_MODEL replaces it."
    ),
)
BOOKING_DESK = DemoJob(
    scenario="booking_desk",
    name="booking desk",
    base_model=BOOKING_POLICY,
    judge=STAND_IN,
    steps=30,
    loop=_AT_A_DESK,
    train=TrainConfig(learning_rate=2e-3),
    lora=LoraSettings(),
    measures={"turns": "turns", "tool_errors": "tool errors"},
    habit="looked_before_acting",
    learned=(
        "The base policy knows how to do this job, but its noisy demonstrations gave it bad habits: it books and "
        "cancels without looking, or sells the dearest room. The judge's reward removed them. Only LoRA weights "
        "changed, and no reward function was written."
    ),
    caveat=(
        "The policy has a few hundred thousand parameters and learned nothing but this job. The judge read the "
        "transcripts and the rubric, never the hotel's books, by which success is measured, for comparison only."
    ),
    judge_caveat=RETURNS_DESK.judge_caveat,
    command="gavel demo booking_desk",
)
DESKS: Mapping[DemoScenario, DemoJob] = {"returns_desk": RETURNS_DESK, "booking_desk": BOOKING_DESK}
ONE_SENTENCE = DemoJob(
    scenario="one_sentence",
    name="one sentence",
    base_model=SMALL_MODEL,
    judge=LIKELIHOOD,
    steps=8,
    loop=LoopConfig(
        tasks_per_step=4, group_size=8, max_tokens=40, evaluate_every=4, evaluation_tasks=32, final_tasks=64
    ),
    train=TrainConfig(learning_rate=5e-4, micro_batch_tokens=512),
    lora=LoraSettings(rank=8),
    slots=32,
    max_context=128,
    threads=None,
    measures={"words": "words", "names_topic": "names its topic", "truncated": "cut off at 40 tokens"},
    decimals={"words": 1},
    success="one short sentence that names its topic",
    learned=(
        "Asked for one short sentence, the base model rambles. The judge's scores taught it to be short, and the text "
        "still reads as language: see its log-prob under the frozen base. Only LoRA weights changed."
    ),
    caveat=(
        "A real language model, but a small one: SmolLM2-135M-Instruct. The judge never saw the figure of success, "
        "which is counted: one finished sentence of 4 to 12 words that names its topic."
    ),
    judge_caveat=(
        "The judge was no language model that reads, but likelihoods under the frozen base (of the reply, and how far "
        "its question raises it), times a rule of 4 to 12 words. It finds what is short, reads as language and goes "
        "with the question, not what is true or good; --judge openai/gpt-5-mini replaces it."
    ),
    rollout_tokens=90,
    command="gavel demo --real",
)
