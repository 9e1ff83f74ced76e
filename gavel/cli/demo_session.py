"""Implements `gavel demo`: a judge's scores train a small agent, and a report shows what changed.

Only the size is small: a transformer with LoRA, exact tokens, files on disk. Which model learns which job is told by
the `DemoJob`. With --real the report also shows replies before and after training, and how likely the frozen base finds
them. Imports torch; the command in `demo` imports it only when it runs.
"""

import asyncio
import contextlib
import json
import math
import os
import secrets
import sys
import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import torch
from rich.console import Console
from transformers import AutoTokenizer

from gavel.base.errors import GavelError
from gavel.base.files import write_atomically
from gavel.base.network import free_port
from gavel.base.text import counted
from gavel.cli.demo import ONE_SENTENCE, DemoJob
from gavel.cli.options import LIKELIHOOD, STAND_IN, with_cassette
from gavel.cli.terminal import print_table, say, waiting_for
from gavel.cli.training import RunDisplay, close_replies, open_run, run_directory_of, trainable
from gavel.llm.providers import register
from gavel.reports.demo_page import DemoReport, SummaryRow, TextSample, write_report
from gavel.reports.run_outcome import Outcome, Row, held_out, outcome_in_words, read_outcome, with_judged_pair
from gavel.reports.run_page import DEMO_RUN_REPORT
from gavel.scenarios.scenario import find_scenario
from gavel.scenarios.trajectory import Trajectory
from gavel.trainer.backends.local import LocalBackend
from gavel.trainer.backends.remote.client import RemoteBackend
from gavel.trainer.backends.remote.wire import KEY_VARIABLE
from gavel.trainer.backends.skypilot.backend import SkyPilotBackend
from gavel.trainer.backends.skypilot.hosts import ThisMachine
from gavel.trainer.data.left_out import sentence_of
from gavel.trainer.embedded import SCENARIOS
from gavel.trainer.embedded.small_model import SMALL_MODEL, small_model_path, source_text
from gavel.trainer.loop.likelihood_judge import LikelihoodJudge
from gavel.trainer.loop.train_loop import EVALUATION, TIMES, train_scenario
from gavel.trainer.model import TrainableModel
from gavel.trainer.policy.policy import load_base
from gavel.trainer.run_config import RunConfig
from gavel.trainer.runs.run_directory import runs_root

_START_SECONDS = 300.0
_END_SECONDS = 120.0


@contextlib.asynccontextmanager
async def run_own_backend(
    runs: Path, *, slots: int, max_context: int, versions: int = 1
) -> AsyncGenerator[RemoteBackend]:
    """Starts a server of `gavel backend`, yields its backend, and ends it. Raises `GavelError` if it does not start."""
    key = secrets.token_urlsafe(24)
    settings = {"port": 0, "runs": runs, "slots": slots, "max-context": max_context, "versions": versions}
    options = [part for name, value in settings.items() for part in (f"--{name}", str(value))]
    server = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gavel", "backend", *options),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, KEY_VARIABLE: key},
        start_new_session=True,  # Ctrl-C is for the command, which ends its server
    )
    assert server.stdout is not None
    try:
        try:
            line = await asyncio.wait_for(server.stdout.readline(), _START_SECONDS)
        except TimeoutError:
            line = b""
        address = next((part for part in line.decode().split() if part.startswith("http://")), None)
        if address is None:
            raise GavelError("the server of `gavel backend` did not start", "Try: gavel backend --port 0")
        async with RemoteBackend(address, key) as backend:
            yield backend
    finally:
        if server.returncode is None:
            server.terminate()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(server.wait(), _END_SECONDS)
        if server.returncode is None:
            server.kill()


_PLAIN: dict[str, Any] = {"highlight": False, "markup": False, "soft_wrap": True}


_SAMPLES = 10
_NEUTRAL = "Write one short sentence."


class FrozenBase:
    """The base model, never trained: it tells how likely a reply is, and is registered as the judge `likelihood`."""

    def __init__(self, console: Console) -> None:
        directory = small_model_path(lambda line: console.print(line, highlight=False, markup=False))
        self.source = source_text(directory)
        tokenizer: Any = AutoTokenizer.from_pretrained(str(directory))
        device = "cuda" if torch.cuda.is_available() else "cpu"
        self.judge = LikelihoodJudge(load_base(SMALL_MODEL, torch.float32, device), tokenizer, _NEUTRAL)
        register(LIKELIHOOD, self.judge.reply)


@dataclass(frozen=True, slots=True)
class TextComparison:
    """Held-out replies before and after training."""

    samples: Sequence[TextSample]
    rows: Sequence[SummaryRow]
    summary: dict[str, Any]
    """Contents of summary.json."""
    source: str
    """The source of the base's weights."""


def compare_texts(base: FrozenBase, directory: Path, outcome: Outcome) -> TextComparison:
    """The replies of the first and the last evaluation of the run in `directory`."""
    both = [held_out(directory, point.step) for point in (outcome.base, outcome.trained)]
    topics = [task for task in both[0] if task in both[1]]
    replies = [[_reply(each[task]) for task in topics] for each in both]
    found = [mean for mean, _ in base.judge.logprobs([*replies[0], *replies[1]])]
    before, after = found[: len(topics)], found[len(topics) :]
    samples = [
        TextSample(task.replace("-", " "), old[1], new[1], one, other)
        for task, old, new, one, other in zip(topics, *replies, before, after, strict=True)
    ]
    gain = outcome.trained.success - outcome.base.success
    error = math.hypot(*(_standard_error(point.success, point.tasks) for point in (outcome.base, outcome.trained)))
    summary = {
        "mean_logprob": {"base": fmean(before), "trained": fmean(after)},
        "nonsense": {"base": _nonsense(before), "trained": _nonsense(after)},
        "gain_in_standard_errors": gain / error,
        "weights": base.source,
    }
    rows = [
        SummaryRow("log-prob a token, frozen base", _mean(before), _mean(after)),
        SummaryRow("replies below −5 (no language)", f"{_nonsense(before):.2f}", f"{_nonsense(after):.2f}"),
    ]
    return TextComparison(samples[:_SAMPLES], rows, summary, base.source)


def _reply(row: Row) -> tuple[list[Any], str]:
    messages = Trajectory.model_validate(row).messages()
    return [{"role": m["role"], "content": m["content"]} for m in messages[:-1]], messages[-1].get("content") or ""


def _nonsense(logprobs: Sequence[float]) -> float:
    return fmean(value < -5 for value in logprobs)


def _mean(logprobs: Sequence[float]) -> str:
    error = stdev(logprobs) / math.sqrt(len(logprobs)) if len(logprobs) > 1 else 0.0
    return f"{fmean(logprobs):.2f} ± {1.96 * error:.2f}"


def _standard_error(share: float, count: int) -> float:
    """Agresti–Coull's, which is not 0 where all or none succeeded."""
    adjusted = (share * count + 2) / (count + 4)
    return math.sqrt(adjusted * (1 - adjusted) / (count + 4))


@dataclass(frozen=True, slots=True)
class DemoRun:
    """A demo, and what the command's options make of it."""

    job: DemoJob
    config: RunConfig
    fresh: bool = False
    backend: str = "local"
    """Trains in this process; or through a server of `gavel backend` that the command starts (remote), or that it
    starts as a cluster does (sky-local)."""

    @property
    def judge(self) -> str:
        return str(self.config.judge.models)

    @property
    def steps(self) -> int:
        return self.config.loop.steps

    @property
    def model(self) -> TrainableModel:
        """Its name is the same for the same command; different for other settings."""
        judge = "" if self.judge == self.job.judge else "-" + self.judge.replace("/", "-")
        steps = "" if self.steps == self.job.steps else f"-{self.steps}-steps"
        backend = "" if self.backend == "local" else f"-{self.backend}"
        name = f"{self.job.name.replace(' ', '-')}-seed-{self.config.loop.seed}{judge}{steps}{backend}"
        return trainable(self.config, "demo").model_copy(update={"name": name})

    @property
    def again(self) -> str:
        """The command that starts this run over."""
        judge = "" if self.judge == LIKELIHOOD else f" --judge {self.judge}"
        backend = "" if self.backend == "local" else f" --backend {self.backend}"
        return f"{self.job.command} --seed {self.config.loop.seed}{judge} --steps {self.steps}{backend} --fresh"


async def run_demo(demo: DemoRun, started: float) -> dict[str, Any]:
    """Trains the embedded policy, continuing an earlier run of the same command, and prints the outcome.

    `started` is when the command started, by `time.monotonic`. Writes `report.html` and `summary.json` to the run
    directory; returns the summary.
    """
    console = Console()
    job, config, model, scenario = demo.job, demo.config, demo.model, find_scenario(demo.job.scenario)
    directory = run_directory_of(model)
    base = await asyncio.to_thread(FrozenBase, console) if job is ONE_SENTENCE else None
    judge = with_cassette(config.judge, directory).build(scenario.rubric)
    await judge.probe(replayed=False)
    page = directory / DEMO_RUN_REPORT
    async with open_run(console, model, _backend(demo), judge, fresh=demo.fresh, page=page) as run:
        setup = time.monotonic() - started
        earlier = sum(row["whole"] for row in run.backend.history(model, TIMES))
        for line in _headline(demo, run.backend.parameter_count(model), run.start).splitlines():
            say(console, line)
        points = run.backend.history(model, EVALUATION)
        first = next((row["success"] for row in points if row["step"] == 0), None)
        display = RunDisplay(console, demo.steps, run.start, first, on_start=run.begun, judge=judge, report=run.report)
        with display.shown():
            await train_scenario(model, scenario, judge, config.loop, config.train, display)
    with waiting_for("writing the report"):
        outcome = await with_judged_pair(read_outcome(directory, run.rows, job.habit), judge)
        texts = None if base is None else await asyncio.to_thread(compare_texts, base, directory, outcome)
    seconds = {"setup": setup, **outcome.seconds, "total": earlier + time.monotonic() - started}
    summary = _summary(demo, outcome, seconds) | ({} if texts is None else texts.summary)
    write_atomically(directory / "summary.json", json.dumps(summary, indent=1) + "\n")
    report = directory / "report.html"
    told = outcome_in_words(run.rows, max_tokens=config.loop.max_tokens, scenario=job.scenario)
    gained = outcome.trained.success - outcome.base.success
    if outcome.trained_steps and gained > outcome.trained.half_width + outcome.base.half_width:
        told.append(job.learned)
    write_report(report, _report(demo, outcome, " ".join(told), seconds, texts))
    for line in told:
        say(console, line)
    close_replies(console, judge)
    _print(console, job, outcome, report, texts)
    if run.page is not None:
        say(console, f"All of its figures: {run.page}")
    return summary


@contextlib.asynccontextmanager
async def _backend(demo: DemoRun) -> AsyncGenerator[LocalBackend | RemoteBackend]:
    size = demo.job.backend
    if demo.backend != "sky-local":
        is_remote = demo.backend == "remote"
        async with run_own_backend(runs_root(), **size) if is_remote else LocalBackend(**size) as backend:
            yield backend
        return
    name, runs = f"demo-{os.getpid()}", str(runs_root())
    size |= {"port": free_port(), "runs": runs, "say": lambda _: None}
    backend = await SkyPilotBackend.launch(name, None, host=ThisMachine(), **size)
    try:
        yield backend
    finally:
        await backend.down()


def _headline(demo: DemoRun, parameters: int, start: int) -> str:
    names = {
        STAND_IN: "stand-in judge (rules, no key)",
        LIKELIHOOD: "likelihood judge (the frozen base and a word count)",
    }
    judge = names.get(demo.judge, f"judge {demo.judge}")
    job, base = demo.job, demo.config.model.base_model
    size = f"{parameters // 1000}k" if parameters < 1e6 else f"{parameters / 1e6:.0f}M"
    policy = f"{'embedded policy' if base in SCENARIOS else base} ({size} parameters)"
    line = f"Gavel demo · {job.name} · {policy} · {judge} · {os.cpu_count()} cores"
    if start >= demo.steps:
        return f"{line}\nThis run is finished; here is its outcome again. `{demo.again}` starts over."
    return f"{line}\nContinuing after step {start}." if start else line


def _summary(demo: DemoRun, outcome: Outcome, seconds: dict[str, float]) -> dict[str, Any]:
    return {
        "seed": demo.config.loop.seed,
        "judge": demo.judge,
        "backend": demo.backend,
        "steps": demo.steps,
        "trained_steps": outcome.trained_steps,
        "heldout_tasks": outcome.trained.tasks,
        "base": _figures(demo.job, outcome.base.measures),
        "trained": _figures(demo.job, outcome.trained.measures),
        "judge_vs_success_tau": outcome.tau,
        "groups": dict(outcome.statuses),
        "left_out": dict(outcome.left_out),
        "curve": [
            {"step": point.step, "heldout_success": point.success, "tasks": point.tasks} for point in outcome.curve
        ],
        "seconds": {name: round(value, 2) for name, value in seconds.items()},
    }


def _figures(job: DemoJob, measures: dict[str, float]) -> dict[str, float]:
    return {
        "heldout_success": measures["success"],
        **{name: measures[name] for name in job.measures},
    }


def _report(
    demo: DemoRun,
    outcome: Outcome,
    explanation: str,
    seconds: dict[str, float],
    texts: TextComparison | None,
) -> DemoReport:
    base, trained, job = outcome.base, outcome.trained, demo.job
    judge = job.judge_caveat if demo.judge == job.judge else f"It was {demo.judge}."
    return DemoReport(
        title=f"Gavel demo: {job.name if job is ONE_SENTENCE else f'the {job.name}'}",
        explanation=explanation,
        caveat=f"{job.caveat} {judge}",
        summary=[
            SummaryRow(
                job.success,
                f"{base.success:.2f} ± {base.half_width:.2f}",
                f"{trained.success:.2f} ± {trained.half_width:.2f}",
            ),
            *(SummaryRow(label, *both) for label, both in _measured(job, outcome)),
            *(texts.rows if texts else ()),
        ],
        outcome=outcome,
        seconds=seconds,
        settings={
            "seed": str(demo.config.loop.seed),
            "judge": demo.judge,
            "base model": demo.config.model.base_model,
            **({"weights": texts.source} if texts else {}),
            "backend": demo.backend,
            "steps": str(demo.steps),
            "run again": demo.again,
        },
        samples=texts.samples if texts else (),
    )


def _measured(job: DemoJob, outcome: Outcome) -> Iterator[tuple[str, tuple[str, str]]]:
    """The label of each measure beside success, and its figures before and after."""
    shown = {} if job.habit is None else {job.habit: job.habit.replace("_", " ")}
    for name, label in (shown | dict(job.measures)).items():
        if name not in outcome.base.measures or name not in outcome.trained.measures:
            continue  # a run that an earlier version began
        digits = job.decimals.get(name, 2)
        before, after = outcome.base.measures[name], outcome.trained.measures[name]
        yield label, (f"{before:.{digits}f}", f"{after:.{digits}f}")


def _print(console: Console, job: DemoJob, outcome: Outcome, report: Path, texts: TextComparison | None) -> None:
    base, trained = outcome.base, outcome.trained
    interval = f"({counted(trained.tasks, 'task')}, 95 % interval ±{trained.half_width:.2f})"
    rows = [(job.success, f"{base.success:.2f}", f"{trained.success:.2f}", interval)]
    rows += [(label, *both, "") for label, both in _measured(job, outcome)]
    rows += [(row.label, row.before, row.after, "") for row in (texts.rows if texts else ())]
    print_table(console, ("", "before", "after", ""), rows, right=("before", "after"))
    for sample in texts.samples[:4] if texts else ():
        console.print(f"{sample.topic}\n  before: {sample.before}\n  after:  {sample.after}", **_PLAIN)
    say(console, "by step: " + "  ".join(f"{point.step}: {point.success:.2f}" for point in outcome.curve))
    tau = "no order to compare" if outcome.tau is None else f"tau {outcome.tau:.2f}"
    unscored, degenerate = outcome.statuses["unscored"], outcome.statuses["degenerate"]
    say(console, f"judge vs truth: {tau}, {unscored} unscored, {counted(degenerate, 'degenerate group')} left out")
    for reason, count in outcome.left_out.most_common():
        say(console, f"left out: {count} {sentence_of(reason)}")
    say(console, f"Report: {report}      Next: gavel train my_scenario.py --model Qwen/Qwen3-0.6B")
