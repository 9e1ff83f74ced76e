"""An environment of Atropos around one of Gavel's scenarios, sampled by the policy that `gavel serve-atropos` trains.

    gavel serve-atropos --model embedded/returns-desk --steps 30
    python examples/atropos_environment.py --url http://127.0.0.1:8000 --policy http://127.0.0.1:8001/v1

The loop, registration, back-pressure and sending are atroposlib's own (pip install atroposlib). Only
`collect_trajectories` is ours: it plays a task and gives the exact tokens. Environments that you have need no change.
"""

import argparse
import asyncio
import random
from typing import Any

from atroposlib.envs.base import APIServerConfig, BaseEnv, BaseEnvConfig

import gavel
from gavel.integrations.atropos.group import atropos_group
from gavel.scenarios.rollout import rollout
from gavel.scenarios.scenario import find_scenario
from gavel.trainer.data.token_sequences import COMPACT


class ScenarioEnv(BaseEnv):
    """One scenario; its own `success` is the score."""

    name = "returns_desk"
    seed = 0

    async def setup(self) -> None:
        self.scenario = find_scenario(self.name)
        self.policy = gavel.Model(
            name=self.server.servers[0].config.model_name,
            project=self.name,
            inference_base_url=self.server.servers[0].config.base_url,
            inference_api_key="none",
        )
        self.chance = random.Random(self.seed)

    async def get_next_item(self) -> Any:
        return self.chance.choice(self.scenario.tasks("train"))

    async def collect_trajectories(self, item: Any) -> tuple[Any, list[Any]]:
        plays = [rollout(self.policy, self.scenario, item, fields=COMPACT) for _ in range(self.config.group_size)]
        group = gavel.TrajectoryGroup(await asyncio.gather(*plays))
        for trajectory in group:
            trajectory.reward = float(self.scenario.success(trajectory))
        made, _ = atropos_group(group)
        return (None if made is None else made.model_dump(exclude_none=True)), []

    async def evaluate(self, *args: Any, **kwargs: Any) -> None:
        """Held-out tasks are measured at the trainer: `gavel evaluate`."""


def environment(url: str, policy: str, model: str, tokenizer: str, group_size: int = 8, **changes: Any) -> ScenarioEnv:
    config = BaseEnvConfig(
        group_size=group_size,
        tokenizer_name=tokenizer,
        rollout_server_url=url,
        total_steps=-1,
        steps_per_eval=0,
        use_wandb=False,
        wandb_name=ScenarioEnv.name,
        max_batches_offpolicy=1,
        **changes,
    )
    served = APIServerConfig(base_url=policy, model_name=model, api_key="none", health_check=False)
    return ScenarioEnv(config, [served])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--policy", default="http://127.0.0.1:8001/v1")
    parser.add_argument("--model", default="returns-desk", help="Name of the run that serve-atropos trains.")
    parser.add_argument("--tokenizer", default=None, help="Default: that of the embedded policy.")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    ScenarioEnv.seed = asked.seed
    if asked.tokenizer is None:
        from gavel.trainer.embedded import EMBEDDED_PATH

        asked.tokenizer = str(EMBEDDED_PATH)
    asyncio.run(environment(asked.url, asked.policy, asked.model, asked.tokenizer).env_manager())


if __name__ == "__main__":
    main()
