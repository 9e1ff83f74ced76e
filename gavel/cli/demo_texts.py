"""What `gavel demo --real` adds: replies before and after training, and how likely the frozen base finds them.

The frozen base is also the demo's judge where no judge model is named.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import torch
from rich.console import Console
from transformers import AutoTokenizer

from gavel.llm.providers import register
from gavel.reports.demo_page import SummaryRow, TextSample
from gavel.reports.run_outcome import Outcome, Row, held_out
from gavel.scenarios.trajectory import Trajectory
from gavel.trainer.embedded.small_model import SMALL_MODEL, small_model_path, source_text
from gavel.trainer.loop.likelihood_judge import LIKELIHOOD, LikelihoodJudge
from gavel.trainer.policy.policy import load_base

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
    """For summary.json."""
    source: str
    """Where the base's weights came from."""


def compare_texts(base: FrozenBase, directory: Path, outcome: Outcome) -> TextComparison:
    """The replies of the first and the last evaluation of the run in `directory`."""
    both = [held_out(directory, point.step) for point in (outcome.base, outcome.trained)]
    topics = [task for task in both[0] if task in both[1]]
    replies = [[_reply(each[task]) for task in topics] for each in both]
    found = base.judge.mean_logprobs([*replies[0], *replies[1]])
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
