"""The released atroposlib on the other side: its environments and its server."""

import asyncio
import json
import os
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

pytest.importorskip("atroposlib", reason="make test-bridges installs it")

from atroposlib.envs.base import APIServerConfig, BaseEnv, BaseEnvConfig

from examples.atropos_environment import ScenarioEnv, environment
from gavel.base.network import free_port
from gavel.integrations.atropos.sender import AtroposClient, AtroposSender
from gavel.scenarios.formats.reading import read_groups
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.scenario import find_scenario
from gavel.scenarios.trajectory_store import TrajectoryStore
from gavel.trainer.backends.local import LocalBackend
from gavel.trainer.config import LoopConfig
from gavel.trainer.embedded import EMBEDDED_PATH, EMBEDDED_POLICY
from gavel.trainer.model import TrainableModel
from tests.integrations.atropos.served import AtroposServer

pytestmark = [pytest.mark.bridges, pytest.mark.slow, pytest.mark.timeout(300)]
_SECONDS = 400.0
TOKENIZER = str(EMBEDDED_PATH)
REGISTRATION = {
    **{"wandb_group": "g", "wandb_project": "p", "batch_size": 8, "max_token_len": 512, "num_steps": 100},
    **{"checkpoint_dir": "checkpoints", "save_checkpoint_interval": 0, "starting_step": 0},
}
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


class SentenceEnv(BaseEnv):
    """A single turn through atroposlib's own managed server, which keeps tokens and log-probs."""

    name = "sentence"

    async def setup(self) -> None:
        self.count = 0

    async def get_next_item(self) -> Any:
        self.count += 1
        return f"I want a refund for order {7000 + self.count}"

    async def collect_trajectories(self, item: Any) -> tuple[Any, list[Any]]:
        async with self.server.managed_server(tokenizer=self.tokenizer) as managed:
            await managed.chat_completion(
                messages=[{"role": "user", "content": item}], n=self.config.group_size, max_tokens=12, temperature=1.0
            )
            nodes = managed.get_state()["nodes"]
        return {
            "tokens": [node.tokens for node in nodes],
            "masks": [node.masked_tokens for node in nodes],
            "inference_logprobs": [node.logprobs for node in nodes],
            "scores": [float(number) for number, _ in enumerate(nodes)],
            "generation_params": {"temperature": 1.0},
        }, []

    async def evaluate(self, *args: Any, **kwargs: Any) -> None: ...


async def played(env: BaseEnv, server: AtroposServer) -> None:
    """Lets an environment run until the server's learner is done."""
    playing = asyncio.create_task(env.env_manager())
    try:
        async with asyncio.timeout(_SECONDS):
            ended = asyncio.create_task(asyncio.to_thread(server.wait))
            await asyncio.wait([ended, playing], return_when=asyncio.FIRST_COMPLETED)
            assert await ended == 0, server.log.read_text()
    finally:
        playing.cancel()
        await asyncio.gather(playing, return_exceptions=True)
        server.kill()


def trained(server: AtroposServer, step: int) -> list[TrajectoryGroup]:
    run = server.directory / "runs" / "atropos" / "returns-desk"
    return list(TrajectoryStore(run / "trajectories" / "train" / f"{step:06d}.jsonl.zst"))


def metrics(server: AtroposServer) -> list[dict[str, Any]]:
    lines = (server.directory / "runs" / "atropos" / "returns-desk" / "metrics.jsonl").read_text().splitlines()
    return [row for row in map(json.loads, lines) if row["split"] == "train"]


@pytest.fixture
def learner(tmp_path: Path) -> Iterator[AtroposServer]:
    options = ["--model", EMBEDDED_POLICY, "--steps", "2", "--batch-size", "8", "--wait-minutes", "5"]
    server = AtroposServer(tmp_path, *options)
    server.start()
    yield server
    server.kill()


async def test_its_environment_around_a_scenario_is_trained_on_with_the_policys_own_tokens(learner: AtroposServer):
    env = environment(learner.url, learner.policy_url, "returns-desk", TOKENIZER, group_size=4)
    await played(env, learner)
    rows = metrics(learner)
    assert [row["step"] for row in rows] == [1, 2]
    assert all(row["trajectories_trained"] == 8 and row["atropos/logprobs_computed"] == 0 for row in rows)
    (group, *_) = trained(learner, 1)
    assert len(group) == 4
    assert group.metadata["env_id"] == 0


async def test_its_managed_server_samples_the_policy_and_its_tokens_are_trained_on(
    learner: AtroposServer, tmp_path: Path
):
    tokenizer = shutil.copytree(EMBEDDED_PATH, tmp_path / "tokenizer")  # its own has no chat template
    (tokenizer / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    config = BaseEnvConfig(
        group_size=4,
        tokenizer_name=str(tokenizer),
        rollout_server_url=learner.url,
        total_steps=-1,
        steps_per_eval=0,
        use_wandb=False,
        wandb_name="sentence",
        max_batches_offpolicy=1,
    )
    served = APIServerConfig(
        base_url=learner.policy_url,
        model_name="returns-desk",
        tokenizer_name=str(tokenizer),
        server_type="vllm",
        api_key="none",
        health_check=False,
    )
    await played(SentenceEnv(config, [served]), learner)
    assert [row["trajectories_trained"] for row in metrics(learner)] == [8, 8]
    assert all(row["atropos/logprobs_computed"] == 0 for row in metrics(learner))


async def test_its_server_takes_our_sender(tmp_path: Path):
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "uvicorn", "atroposlib.api:app", "--port", str(port), "--log-level", "error"]
    server = await asyncio.create_subprocess_exec(*command, env={**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True"})
    try:
        async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=30) as trainer:
            await _answering(trainer)
            await trainer.post("/register", json=REGISTRATION)
            assert (await trainer.get("/batch")).json() == {"batch": None}  # from now on environments may register
            model = TrainableModel(name="clerk", project="tests", base_model=EMBEDDED_POLICY)
            async with LocalBackend(tmp_path, max_context=1024) as backend, AtroposClient(url) as client:
                await model.register(backend)
                loop = LoopConfig(group_size=4, reward={"success": 1.0})
                scenario = find_scenario("returns_desk")
                sent = await AtroposSender(client, model, scenario, loop, groups=2).run()
            batch = (await trainer.get("/batch")).json()["batch"]
    finally:
        server.kill()
        await server.wait()
    assert sent.groups == 2
    assert sum(len(group["tokens"]) for group in batch) == 8
    for group in batch:
        for tokens, mask, logprobs in zip(group["tokens"], group["masks"], group["inference_logprobs"], strict=True):
            trained_places = [at for at, kept in enumerate(mask) if kept != -100]
            assert trained_places
            assert [mask[at] for at in trained_places] == [tokens[at] for at in trained_places]
            assert all((logprobs[at] <= 0) == (at in trained_places) for at in range(len(tokens)))
        assert set(group["scores"]) == {0.0, 1.0}


async def _answering(client: httpx.AsyncClient) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        try:
            await client.get("/info")
            return
        except httpx.TransportError:
            await asyncio.sleep(0.1)
    raise AssertionError("atroposlib's server did not start")


async def test_what_its_process_command_writes_is_read(tmp_path: Path):
    file = tmp_path / "groups.jsonl"
    model = TrainableModel(name="clerk", project="tests", base_model=EMBEDDED_POLICY)
    async with LocalBackend(tmp_path, max_context=1024) as backend:
        await model.register(backend)
        config = BaseEnvConfig(
            group_size=2,
            tokenizer_name=TOKENIZER,
            use_wandb=False,
            include_messages=True,
            ensure_scores_are_not_same=False,
            data_path_to_save_groups=str(file),
        )
        served = APIServerConfig(
            base_url=backend.endpoint(model).base_url, model_name="clerk", api_key="none", health_check=False
        )
        env = ScenarioEnv(config, [served])
        env.n_groups_to_process, env.group_size_to_process, env.process_mode = 2, 2, True
        await env.process_manager()
    groups = read_groups(file)
    assert [len(group) for group in groups] == [2, 2]
    for trajectory in (trajectory for group in groups for trajectory in group):
        assert trajectory.messages()[0]["role"] == "system"
        assert any("token_ids" in (choice.model_extra or {}) for choice in trajectory.choices())
        assert trajectory.reward in (0.0, 1.0)
