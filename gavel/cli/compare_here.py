"""Cells of a comparison trained in this process, for a scenario that only the calling program holds."""

from collections.abc import Awaitable, Callable
from pathlib import Path

from gavel.cli.cassette_option import with_cassette
from gavel.cli.compare_cells import Cell
from gavel.cli.run_model import opened_backend, trainable
from gavel.scenarios.scenario import Scenario
from gavel.trainer.loop.train_loop import train_scenario


def training_here(scenario: Scenario) -> Callable[[Cell, Path], Awaitable[None]]:
    """What trains one cell of this scenario after another."""

    async def train(cell: Cell, root: Path) -> None:
        config = cell.config.resolved()
        judge = None
        if "judge" in config.loop.reward:
            judge = with_cassette(config.judge, cell.directory).build(scenario.rubric)
            await judge.probe(replayed=False)
        model = trainable(config, scenario)
        try:
            async with await opened_backend(config.backend, config, str(root)) as backend:
                await model.register(backend)
                await train_scenario(model, scenario, judge, config.loop, config.train)
        finally:
            if judge is not None and judge.cassette is not None:
                judge.cassette.close()

    return train
