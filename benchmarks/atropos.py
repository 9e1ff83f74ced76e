"""Does training through Atropos reach what training in process reaches? `returns_desk`, the same batches and settings.

    OMP_NUM_THREADS=1 python benchmarks/atropos.py --runs runs/atropos-benchmark
    … --python .venvs/atropos/bin/python --seeds 0 1 2      with atroposlib's environment too; more seeds

Three ways of one seed: in process (`train_scenario`), `gavel send-atropos` over HTTP, and an environment of the
released atroposlib (examples/atropos_environment.py, where --python has it). All train the embedded policy by `success`
alone, in steps of 64 trajectories; the held-out success is measured on 256 tasks before and after. The bar: a way
through Atropos ends no more than 3 standard errors of the difference below the way in process. Exits with 1 when the
bar is missed.
"""

import argparse
import asyncio
import math
import os
import sys
import time
from pathlib import Path

from gavel.integrations._serving import listen_safely, serve
from gavel.integrations.atropos.learner import AtroposLearner
from gavel.integrations.atropos.queue import GroupQueue
from gavel.integrations.atropos.server import TrainerInfo, create_app
from gavel.scenarios.library.returns_desk import scenario
from gavel.trainer.backends.local import LocalBackend
from gavel.trainer.config import LoopConfig, TrainConfig
from gavel.trainer.embedded import EMBEDDED_POLICY
from gavel.trainer.loop.evaluation import evaluate
from gavel.trainer.loop.train_loop import train_scenario
from gavel.trainer.model import TrainableModel

WAYS = ("in-process", "send-atropos", "atroposlib")
TASKS, GROUPS, GROUP_SIZE = 256, 8, 8
ROOT = Path(__file__).resolve().parents[1]


def _train_config(steps: int) -> TrainConfig:
    return TrainConfig(learning_rate=2e-3, warmup_steps=min(3, steps - 1), total_steps=steps)


async def _success(model: TrainableModel, seed: int) -> float:
    loop = LoopConfig(seed=1000 + seed)
    return (await evaluate(model, scenario, TASKS, loop)).measures["success"]


async def _in_process(model: TrainableModel, backend: LocalBackend, steps: int, seed: int) -> None:
    loop = LoopConfig(
        steps=steps,
        tasks_per_step=GROUPS,
        group_size=GROUP_SIZE,
        reward={"success": 1.0},
        seed=seed,
        evaluate_every=10**6,
        evaluation_tasks=1,
        final_tasks=1,
    )
    await train_scenario(model, scenario, None, loop, _train_config(steps))


async def _through_atropos(
    model: TrainableModel, backend: LocalBackend, steps: int, seed: int, python: str | None, runs: Path
) -> None:
    """With a sender of ours, or with an environment of atroposlib in `python`."""
    space = backend.token_space(model)
    trainer = TrainerInfo(
        wandb_group=model.name,
        wandb_project=model.project,
        batch_size=GROUPS * GROUP_SIZE,
        max_token_len=space.max_context,
        checkpoint_dir=str(runs / "environments"),
        num_steps=steps - 1,
    )
    queue = GroupQueue(runs / "queues" / f"{model.name}.sqlite", space)
    learner = AtroposLearner(model, backend, queue, _train_config(steps), steps, GROUPS * GROUP_SIZE, wait_seconds=600)
    listener = listen_safely("127.0.0.1", 0, None, "ATROPOS_KEY")
    address = asyncio.get_running_loop().create_future()

    async def environment() -> None:
        url, policy = await address, backend.endpoint(model).base_url
        if python is None:
            command = [
                sys.executable,
                "-m",
                "gavel",
                "send-atropos",
                scenario.name,
                "--url",
                url,
                "--policy-url",
                policy,
            ]
            command += ["--reward", "success=1", "--group-size", str(GROUP_SIZE), "--seed", str(seed)]
        else:
            command = [python, str(ROOT / "examples" / "atropos_environment.py"), "--url", url, "--policy", policy]
            command += ["--model", model.name, "--seed", str(seed)]
        with (runs / f"{model.name}.log").open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                *command, stdout=log, stderr=log, env={**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
            )
            try:
                await process.wait()
            finally:
                if process.returncode is None:
                    process.kill()

    playing = asyncio.create_task(environment())
    try:
        await serve(
            create_app(queue, trainer),
            listener,
            host="127.0.0.1",
            announce=address.set_result,
            work=learner.run(),
        )
    finally:
        playing.cancel()
        await asyncio.gather(playing, return_exceptions=True)
        queue.close()


async def run(way: str, steps: int, seed: int, python: str | None, runs: Path) -> tuple[float, float, float]:
    """Held-out success before and after, and seconds of training."""
    model = TrainableModel(name=f"{way}-{seed}", project="atropos-benchmark", base_model=EMBEDDED_POLICY)
    async with LocalBackend(runs, max_context=1024) as backend:
        await model.register(backend)
        before = await _success(model, seed)
        started = time.monotonic()
        if way == "in-process":
            await _in_process(model, backend, steps, seed)
        else:
            await _through_atropos(model, backend, steps, seed, python if way == "atroposlib" else None, runs)
        seconds = time.monotonic() - started
        return before, await _success(model, seed), seconds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--python", help="a Python that has atroposlib")
    parser.add_argument("--ways", nargs="+", choices=WAYS, help="default: all, atroposlib with --python alone")
    asked = parser.parse_args()
    ways = asked.ways or [way for way in WAYS if way != "atroposlib" or asked.python]
    asked.runs.mkdir(parents=True, exist_ok=True)
    print(f"held-out success on {TASKS} tasks, {asked.steps} steps of {GROUPS} x {GROUP_SIZE}")
    missed = False
    for seed in asked.seeds:
        reached: dict[str, float] = {}
        for way in ways:
            before, after, seconds = asyncio.run(run(way, asked.steps, seed, asked.python, asked.runs))
            reached[way] = after
            print(f"seed {seed}  {way:13} {before:.3f} -> {after:.3f}  in {seconds:.0f} s", flush=True)
            if (own := reached.get("in-process")) is not None:
                missed |= after < own - 3 * math.sqrt(2 * own * (1 - own) / TASKS)
    print("the bar is missed" if missed else "the bar is met")
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
