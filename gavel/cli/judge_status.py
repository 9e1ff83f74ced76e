"""What the judge has cost so far, and what it waits for, at the end of a live line."""

from collections.abc import Callable

from rich.progress import ProgressColumn, Task
from rich.text import Text


class JudgeStatus(ProgressColumn):
    """`0.42 USD · rate limited, 20 s`, read anew whenever the line is drawn."""

    def __init__(self, status: Callable[[], str]) -> None:
        super().__init__()
        self._status = status

    def render(self, task: Task) -> Text:
        return Text(self._status(), style="dim", no_wrap=True)
