"""`gavel score --batch`: the calls of the judge go through the vendor's batch interface, mostly at half the price.

The batches of an output are kept in `<output>.batch/` beside it until they are scored: after Ctrl-C, a kill or days,
the same command goes on from there.
"""

import asyncio
import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import typer

from gavel.base.errors import GavelError, first_error
from gavel.judge.config import JudgeConfig
from gavel.judge.judge import Judge
from gavel.llm.batch import BatchCassette, Batches, BatchJob
from gavel.llm.batch_api import connection
from gavel.llm.budget import Budget
from gavel.llm.prices import prices_from_environment
from gavel.llm.providers import PROVIDER, model_id
from gavel.scenarios.group import TrajectoryGroup


class BatchScoring:
    """The batches behind one output."""

    def __init__(self, config: JudgeConfig, out: Path | None) -> None:
        """Raises a `GavelError` when `out` is no file, or another process waits for its batches."""
        if out is None or str(out) == "-" or (out.exists() and not out.is_file()):
            raise GavelError("batches take up to a day, and need a file to be kept beside.", "Add --out FILE.")
        if config.mode in ("decisions", "readout"):
            raise GavelError(
                f"batches answer in words, and the mode {config.mode} reads probabilities.", "Leave --batch out."
            )
        logging.getLogger("LiteLLM").setLevel(logging.CRITICAL)  # it prints a traceback for a failure that passes
        self._config = config
        self._job = BatchJob(out.with_name(f"{out.name}.batch"))
        prices = prices_from_environment() if config.prices is None else config.prices
        budget = Budget(config.max_cost_usd, config.max_tokens)
        self._batches = Batches(self._job, prices, budget, _tell)

    async def answer(self, groups: Sequence[TrajectoryGroup]) -> None:
        """Judges the groups again and again, each time with more replies, until no question is open."""
        while True:
            judge = self.judge()
            judge.check()
            for model, params in paid_models(judge):
                connection(model, params)
            with first_error():
                async with asyncio.TaskGroup() as tasks:
                    for group in groups:
                        if group.trajectories:
                            tasks.create_task(judge.score(group))
            if judge.cassette:
                judge.cassette.close()
            if not await self._batches.advance():
                return

    def judge(self) -> Judge:
        """A judge that is answered by the batches, and by the cassette."""
        named = self._config.cassette
        path = self._job.directory / "cassette.sqlite" if named is None or str(named) == "none" else named
        return self._config.build(cassette=BatchCassette(path, self._batches))

    def finish(self) -> None:
        """Deletes what is kept beside the output, once it is written."""
        self._job.remove()

    def close(self) -> None:
        self._job.close()


def paid_models(judge: Judge) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The models that are no code of this process, with their parameters."""
    for juror in judge.jurors:
        for model in juror.models:
            if isinstance(model, str) and not (name := model_id(model)).startswith(f"{PROVIDER}/"):
                yield name, juror.params


def _tell(line: str) -> None:
    typer.echo(line, err=True)
