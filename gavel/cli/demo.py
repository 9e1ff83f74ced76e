"""`gavel demo`: the main job, small enough for a laptop: two desks for tiny policies, one sentence for a real model."""

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import typer

from gavel.base.errors import GavelError
from gavel.base.extras import need_extra
from gavel.cli.lazy_commands import single_command
from gavel.cli.named import scenario_named
from gavel.cli.options import LIKELIHOOD, RUN_JUDGE_FLAGS, STAND_IN, DryRun, Flag, run_config, with_options
from gavel.cli.run_file import Table
from gavel.cli.terminal import RESUME, TRAINER, run_to_end, waiting_for
from gavel.cli.training import print_run_estimates
from gavel.judge.config import JudgeConfig
from gavel.trainer.embedded import BOOKING_POLICY, EMBEDDED_POLICY
from gavel.trainer.embedded.small_model import SMALL_MODEL
from gavel.trainer.run_config import RunConfig

DemoScenario = Literal["returns_desk", "booking_desk"]
_AT_A_DESK = {"max_tokens": 64, "concurrency": 256, "final_tasks": 512}


@dataclass(frozen=True, slots=True)
class DemoJob:
    """A demo: the job, the settings of its run, and the sentences printed about it."""

    scenario: str
    name: str
    """The name in the headline and of the run."""
    settings: Table
    """Of the run, as a run.toml has them."""
    measures: Mapping[str, str]
    """Measures shown beside success, and their labels."""
    learned: str
    """The sentence for a run that improved."""
    caveat: str
    judge_caveat: str
    """The caveat for `judge`."""
    judge: str = STAND_IN
    """The judge where no other is named."""
    habit: str | None = None
    """The measure that is low where the habit shows that `learned` names."""
    decimals: Mapping[str, int] = field(default_factory=dict[str, int])
    """Digits of a measure, where they are not two."""
    success: str = "held-out success"
    backend: Table = field(default_factory=lambda: {"slots": 256, "max_context": 4096})
    threads: int | None = 1
    """Threads of the tensor library, which slow down a tiny model; None: the library's default."""
    rollout_tokens: int = 200
    """Tokens per rollout that `--dry-run` assumes."""
    command: str = "gavel demo"

    @property
    def steps(self) -> int:
        return self.settings["loop"]["steps"]


RETURNS_DESK = DemoJob(
    scenario="returns_desk",
    name="returns desk",
    settings={
        "model": {"base_model": EMBEDDED_POLICY},
        "loop": {**_AT_A_DESK, "steps": 20, "tasks_per_step": 8},
        "train": {"learning_rate": 4e-3},
    },
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
    settings={
        "model": {"base_model": BOOKING_POLICY},
        "loop": {**_AT_A_DESK, "steps": 30},
        "train": {"learning_rate": 2e-3},
    },
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
    settings={
        "model": {"base_model": SMALL_MODEL, "lora": {"rank": 8}},
        "loop": {
            "steps": 8,
            "tasks_per_step": 4,
            "group_size": 8,
            "max_tokens": 40,
            "evaluate_every": 4,
            "evaluation_tasks": 32,
            "final_tasks": 64,
        },
        "train": {"learning_rate": 5e-4, "micro_batch_tokens": 512},
    },
    judge=LIKELIHOOD,
    backend={"slots": 32, "max_context": 128},
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


_OF_THE_JUDGE = ("--judge", "--max-cost", "--max-judge-tokens", "--judge-concurrency", "--judge-param", "--cassette")
DEMO_BACKENDS = ("local", "remote", "sky-local")
_FLAGS = [
    *(flag for flag in RUN_JUDGE_FLAGS if flag.name in _OF_THE_JUDGE),
    Flag(
        "loop.steps",
        "--steps",
        f"{RETURNS_DESK.steps}; with --real {ONE_SENTENCE.steps}; another number is another run",
    ),
    Flag("loop.seed", "--seed"),
]


def demo(
    values: Mapping[str, Any],
    scenario: Annotated[
        DemoScenario | None, typer.Argument(help="What a tiny policy learns. Default: returns_desk.")
    ] = None,
    real: Annotated[
        bool,
        typer.Option("--real", help="Train a small real language model on one_sentence (`make real` fetches it)."),
    ] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Start over instead of continuing an earlier run.")] = False,
    backend: Annotated[
        str,
        typer.Option(
            help="local; remote: through a `gavel backend` started for it; sky-local: started as a cluster starts it."
        ),
    ] = "local",
    dry_run: DryRun = False,
) -> None:
    """Train a tiny agent on this machine: no GPU, no key, a few minutes."""
    started = time.monotonic()
    if backend not in DEMO_BACKENDS:
        raise typer.BadParameter(", ".join(DEMO_BACKENDS), param_hint="--backend")
    if real and scenario is not None:
        raise GavelError(
            f"--real is not for {scenario}: it trains on one_sentence.", f"Leave out {scenario} or --real."
        )
    job = ONE_SENTENCE if real else DESKS[scenario or "returns_desk"]
    tables = {**job.settings, "backend": job.backend}
    config = run_config(job.scenario, values, flags=_FLAGS, base=tables).resolved()
    config = config.model_copy(update={"judge": _judge_of(job, config.judge, values["judge"])})
    if dry_run and config.judge.models == LIKELIHOOD:
        return typer.echo("The judge is the likelihood of the frozen base, on this machine: it costs nothing.")
    if dry_run:
        judge = config.judge.build(scenario_named(job.scenario).rubric)
        return print_run_estimates([("", judge, config.loop, 1)], {"Rollouts as the demo's are": job.rollout_tokens})
    need_extra("train", job.command)
    if job.threads is not None:
        os.environ.setdefault("OMP_NUM_THREADS", str(job.threads))  # read when torch is imported, here or in a child
    with waiting_for(TRAINER):
        from gavel.cli.demo_session import DemoRun, run_demo

    run_to_end(run_demo(DemoRun(job, config, fresh, backend), started), RESUME)


def _judge_of(job: DemoJob, judge: JudgeConfig, named: str | None) -> JudgeConfig:
    """The judge that was named, else the job's own. Raises `GavelError` for the stand-in where it has no rules."""
    if job.judge == STAND_IN or judge.models != STAND_IN:
        return judge
    if named is not None:
        raise GavelError(
            f"the stand-in checks rules about tool calls, and the job {job.name!r} has none.",
            f"Leave --judge out ({job.judge} judges then), or name a judge model: --judge openai/gpt-5-mini.",
        )
    orders = {} if "orders" in judge.model_fields_set else {"orders": 1}  # it is no different in another order
    return judge.model_copy(update={"models": job.judge, **orders})


app = single_command(with_options(demo, RunConfig, _FLAGS))
