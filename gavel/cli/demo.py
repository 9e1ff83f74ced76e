"""`gavel demo`: the main job, small enough for a laptop: two desks for tiny policies, one sentence for a real model.

Only the size is small: a transformer with LoRA, exact tokens, files on disk. Which model learns which job is told by
the `DemoJob`. Torch is imported when the backend is opened.
"""

import asyncio
import contextlib
import json
import os
import secrets
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from gavel.base.errors import GavelError
from gavel.base.extras import need_extra
from gavel.base.files import write_atomically
from gavel.base.network import free_port
from gavel.cli.interrupts import RESUME, run_to_end
from gavel.cli.options import LIKELIHOOD, STAND_IN, Flag, Fresh, run_config, run_flags, settings_command, with_cassette
from gavel.cli.run_file import Table
from gavel.cli.terminal import TRAINER, say, waiting_for
from gavel.cli.train import measures_of, train_and_tell
from gavel.cli.training import OpenRun, run_directory_of, run_gavel, trainable
from gavel.judge.config import JudgeConfig
from gavel.reports.run_figures import is_trained, training_rows
from gavel.reports.run_page import write_run_report
from gavel.scenarios.scenario import find_scenario
from gavel.trainer.embedded import BOOKING_POLICY, EMBEDDED_POLICY, SCENARIOS
from gavel.trainer.embedded.small_model import SMALL_MODEL
from gavel.trainer.loop.evaluation import interval
from gavel.trainer.loop.train_loop import EVALUATION
from gavel.trainer.run_config import RunConfig
from gavel.trainer.runs.run_directory import runs_root

if TYPE_CHECKING:
    from gavel.trainer.backends.local import LocalBackend
    from gavel.trainer.backends.remote.client import RemoteBackend

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
    learned: str
    """The sentence for a run that improved."""
    caveat: str
    judge_caveat: str
    """The caveat for `judge`."""
    judge: str = STAND_IN
    """The judge where no other is named."""
    backend: Table = field(default_factory=lambda: {"slots": 256, "max_context": 4096})
    threads: int | None = 1
    """Threads of the tensor library, which slow down a tiny model; None: the library's default."""
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
    learned=(
        "The base policy knows how to do this job, but its noisy demonstrations gave it a bad habit: it acts without "
        "looking. The judge's reward removed the habit. Only LoRA weights changed, and no reward function was written."
    ),
    caveat=(
        "The policy has a few hundred thousand parameters and learned nothing but this job. The judge read the "
        "transcripts and the rubric, never the true outcome, which is measured for comparison only."
    ),
    judge_caveat=(
        "It was the stand-in, which checks written rules and is no language model; GAVEL_JUDGE_MODEL replaces it."
    ),
)
BOOKING_DESK = replace(
    RETURNS_DESK,
    scenario="booking_desk",
    name="booking desk",
    settings={
        "model": {"base_model": BOOKING_POLICY},
        "loop": {**_AT_A_DESK, "steps": 30},
        "train": {"learning_rate": 2e-3},
    },
    learned=(
        "The base policy knows how to do this job, but its noisy demonstrations gave it bad habits: it books and "
        "cancels without looking, or sells the dearest room. The judge's reward removed them."
    ),
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
    command="gavel demo --real",
)


_START_SECONDS = 300.0
_STEPS = f"{RETURNS_DESK.steps}; with --real {ONE_SENTENCE.steps}; another number is another run"
_FLAGS = [
    *run_flags("--judge", "--max-cost", "--max-judge-tokens", "--judge-concurrency", "--judge-param", "--cassette"),
    Flag("loop.steps", "--steps", _STEPS),
    *run_flags("--seed"),
]


def demo(
    values: Mapping[str, Any],
    scenario: Annotated[DemoScenario | None, typer.Argument(help="What is learned. Default: returns_desk.")] = None,
    real: Annotated[bool, typer.Option("--real", help="Train a small real model (`make real` fetches it).")] = False,
    fresh: Fresh = False,
    backend: Annotated[
        Literal["local", "remote", "sky-local"],
        typer.Option(help="remote: through a `gavel backend`; sky-local: as on a cluster."),
    ] = "local",
) -> None:
    """Train a tiny agent on this machine: no GPU, no key, a few minutes."""
    if real and scenario is not None:
        raise GavelError(
            f"--real is not for {scenario}: it trains on one_sentence.", f"Leave out {scenario} or --real."
        )
    job = ONE_SENTENCE if real else DESKS[scenario or "returns_desk"]
    tables = {**job.settings, "backend": job.backend}
    config = run_config(job.scenario, values, flags=_FLAGS, base=tables).resolved()
    config = config.model_copy(update={"judge": _judge_of(job, config.judge, values["judge"])})
    need_extra("train", job.command)
    if job.threads is not None:
        os.environ.setdefault("OMP_NUM_THREADS", str(job.threads))  # read when torch is imported, here or in a child
    run_to_end(run_demo(job, config, fresh=fresh, where=backend), RESUME)


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


async def run_demo(job: DemoJob, config: RunConfig, *, fresh: bool, where: str) -> None:
    """Trains, continuing an earlier run of the same command; prints the outcome, and writes it as `summary.json` to the
    run directory.

    `where` it trains: in this process (local); through a server of `gavel backend` that is started here (remote), or
    that is started as a cluster does (sky-local).
    """
    scenario, seed, steps = find_scenario(job.scenario), config.loop.seed, config.loop.steps
    named = str(config.judge.models)
    parts = [f"{job.name.replace(' ', '-')}-seed-{seed}"]  # the same for the same command, different for other settings
    parts += [] if named == job.judge else [named.replace("/", "-")]
    parts += [] if steps == job.steps else [f"{steps}-steps"]
    parts += [] if where == "local" else [where]
    model = trainable(config, "demo").model_copy(update={"name": "-".join(parts)})
    options = ("" if named == LIKELIHOOD else f" --judge {named}") + ("" if where == "local" else f" --backend {where}")
    again = f"{job.command} --seed {seed} --steps {steps}{options} --fresh"
    directory = run_directory_of(model)
    judge = with_cassette(config.judge, directory).build(scenario.rubric)
    await judge.probe(replayed=False)

    def announce(run: OpenRun) -> None:
        parameters = run.backend.parameter_count(model)
        size = f"{parameters // 1000}k" if parameters < 1e6 else f"{parameters / 1e6:.0f}M"
        policy = f"{'embedded policy' if model.base_model in SCENARIOS else model.base_model} ({size} parameters)"
        scorer = _JUDGES.get(named, f"judge {named}")
        say(run.console, f"Gavel demo · {job.name} · {policy} · {scorer} · {os.cpu_count()} cores")
        if run.start >= steps:
            say(run.console, f"This run is finished; here is its outcome again. `{again}` starts over.")
        elif run.start:
            say(run.console, f"Continuing after step {run.start}.")

    opened = _backend(where, job.backend)
    run = await train_and_tell(model, scenario, config, judge, announce, fresh=fresh, backend=opened)
    curve = [row for row in run.rows if row["split"] == EVALUATION]
    base, trained = curve[0], curve[-1]
    tasks, trained_steps = int(trained["trajectories"]), sum(map(is_trained, training_rows(run.rows)))
    about = [f"{job.caveat} {job.judge_caveat if named == job.judge else f'It was {named}.'}", f"Again: {again}"]
    error = sum(interval(row["success"], int(row["trajectories"])) for row in (base, trained))
    if trained_steps and trained["success"] - base["success"] > error:
        about = [job.learned, *about]
        say(run.console, job.learned)
    sides = {"base": base, "trained": trained}
    summary = {
        **{"seed": seed, "judge": named, "steps": steps, "trained_steps": trained_steps, "heldout_tasks": tasks},
        **{side: {"heldout_success": row["success"]} | measures_of(row) for side, row in sides.items()},
        "about": about,
    }
    write_atomically(directory / "summary.json", json.dumps(summary, indent=1) + "\n")
    with waiting_for("writing the report"):
        run.page = write_run_report(directory)
    run.say_end()
    say(run.console, "Next: gavel train my_scenario.py --model Qwen/Qwen3-0.6B")


_JUDGES = {
    STAND_IN: "stand-in judge (rules, no key)",
    LIKELIHOOD: "likelihood judge (the frozen base, a word count)",
}


@contextlib.asynccontextmanager
async def _backend(where: str, size: Table) -> AsyncGenerator["LocalBackend | RemoteBackend"]:
    with waiting_for(TRAINER):
        from gavel.trainer.backends.local import LocalBackend
        from gavel.trainer.backends.remote.client import RemoteBackend
        from gavel.trainer.backends.skypilot.backend import SkyPilotBackend
        from gavel.trainer.backends.skypilot.hosts import ThisMachine
    if where == "local":
        async with LocalBackend(**size) as backend:
            yield backend
    elif where == "remote":
        key, address = secrets.token_urlsafe(24), b""
        options = [f"--slots={size['slots']}", f"--max-context={size['max_context']}", f"--runs={runs_root()}"]
        server = run_gavel("backend", "--port=0", *options, stdout=asyncio.subprocess.PIPE, GAVEL_BACKEND_KEY=key)
        async with server as process:
            assert process.stdout is not None
            with contextlib.suppress(TimeoutError):
                address = await asyncio.wait_for(process.stdout.readline(), _START_SECONDS)
            url = next((part for part in address.decode().split() if part.startswith("http://")), None)
            if url is None:
                raise GavelError("the server of `gavel backend` did not start", "Try: gavel backend --port 0")
            async with RemoteBackend(url, key) as backend:
                yield backend
    else:
        here = {"port": free_port(), "runs": str(runs_root()), "say": lambda _: None}
        backend = await SkyPilotBackend.launch(f"demo-{os.getpid()}", None, host=ThisMachine(), **size, **here)
        try:
            yield backend
        finally:
            await backend.down()


app = settings_command(demo, RunConfig, _FLAGS)
