"""The progress of a gather call, on one line of the terminal.

The gather call only counts, in tallies; the display reads them a few times a second from a thread of its own. It draws
nothing when stderr is not a terminal, or while another rich display uses it.
"""

import numbers
import sys
import time
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gavel.scenarios.trajectory import Trajectory

if TYPE_CHECKING:
    from rich.console import RenderableType

REFRESHES_PER_SECOND = 4


@dataclass(eq=False, slots=True)
class GroupTally:
    """Counts of one group so far."""

    members: int = 0
    certain: bool = False
    """`members` is final. It grows while a coroutine may still add rollouts to its group."""
    started: int = 0
    """Members that were passed to the runner: waiting, running or done."""
    done: int = 0
    failed: int = 0
    completion_tokens: int = 0
    trajectories: list[Trajectory] = field(default_factory=list[Trajectory])
    """The members that are done; once the group is, its members as scored."""


def completion_tokens(trajectory: Trajectory) -> int:
    """Sampled tokens of all turns: the ids that the endpoint sent, else as many as it sent log-probs for."""
    total = 0
    for choice in trajectory.choices():
        token_ids = (choice.model_extra or {}).get("token_ids")
        if token_ids is None and choice.logprobs is not None:
            token_ids = choice.logprobs.content
        total += len(token_ids or ())
    return total


def metric_means(trajectories: Iterable[Trajectory]) -> dict[str, float]:
    """Mean of each metric over the trajectories that have it, in order of appearance; of a bool, the share of True.

    `reward` comes first, over the scored trajectories; it is absent while none is scored.
    """
    sums: dict[str, tuple[float, int]] = {"reward": (0.0, 0)}
    for trajectory in trajectories:
        for name, value in (trajectory.metrics | {"reward": trajectory.reward}).items():
            if isinstance(value, numbers.Real):
                total, count = sums.get(name, (0.0, 0))
                sums[name] = (total + float(value), count + 1)
    return {name: total / count for name, (total, count) in sums.items() if count}


def figures(tallies: Sequence[GroupTally], *, tokens: bool = True, max_metrics: int | None = None) -> str:
    """The running figures: means of the reward and of the first `max_metrics` metrics, failures, completion tokens."""
    means = metric_means(trajectory for tally in tallies for trajectory in list(tally.trajectories))
    metrics = [name for name in means if name != "reward"][:max_metrics]
    parts = [f"{name} {mean:,.2f}" for name, mean in means.items() if name == "reward" or name in metrics]
    if failed := sum(tally.failed for tally in tallies):
        parts.append(f"{failed:,} failed")
    if tokens and (total := sum(tally.completion_tokens for tally in tallies)):
        parts.append(f"{total:,} tokens")
    return " · ".join(parts)


@contextmanager
def gather_display(
    tallies: Sequence[GroupTally],
    description: str | None,
    *,
    shown: bool | None = None,
    tokens: bool = True,
    max_metrics: int | None = None,
) -> Generator[None, None, None]:
    """Shows `tallies` on stderr while the block runs.

    `shown=None`: if stderr is a terminal. True: also where it is none (one line, at the end).
    """
    if shown is None:
        shown = sys.stderr.isatty()
    taken = getattr(sys.stderr, "rich_proxied_file", None) is not None  # by a live display, ours included
    if taken or not shown:
        yield
        return
    from rich.console import Console
    from rich.live import Live
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    started = time.monotonic()

    def line() -> "RenderableType":
        done, members = sum(tally.done for tally in tallies), sum(tally.members for tally in tallies)
        grid = Table.grid(padding=(0, 1))
        grid.add_row(
            Text(description or "", no_wrap=True),
            ProgressBar(total=max(members, 1), completed=done, width=24),
            Text(f"{done:,}/{members:,}", no_wrap=True),
            Text(f"{time.monotonic() - started:,.0f} s", no_wrap=True),
            Text(figures(tallies, tokens=tokens, max_metrics=max_metrics)),
        )
        return grid

    with Live(
        get_renderable=line,
        console=Console(stderr=True),
        refresh_per_second=REFRESHES_PER_SECOND,
        redirect_stdout=sys.stdout.isatty(),  # what is printed meanwhile goes above the line, and to a file unchanged
    ):
        yield
