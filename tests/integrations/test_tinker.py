"""Tinker cookbook's `compute_group_rewards` over its own release: real group rollouts, with a scripted policy."""

import math
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tinker_cookbook", reason="make test-adapters installs tinker-cookbook")

import tinker
from tinker_cookbook.completers import TokenCompleter, TokensWithLogprobs
from tinker_cookbook.renderers.role_colon import RoleColonRenderer
from tinker_cookbook.rl.data_processing import compute_advantages, remove_constant_reward_groups
from tinker_cookbook.rl.message_env import EnvFromMessageEnv, MessageEnv, MessageStepResult
from tinker_cookbook.rl.problem_env import ProblemEnv, ProblemGroupBuilder
from tinker_cookbook.rl.rollout_strategy import FailFast
from tinker_cookbook.rl.rollouts import do_group_rollout
from tinker_cookbook.rl.types import EnvGroupBuilder, TrajectoryGroup
from tinker_cookbook.tool_use.agent_tool_message_env import build_agent_tool_env

from gavel.integrations.tinker import compute_group_rewards
from gavel.scenarios.errors import JudgeError
from gavel.scenarios.truth import truth_of
from tests.integrations.adapters_page import program
from tests.integrations.judges import WorthJudge

pytestmark = pytest.mark.adapters

END = 256


class Bytes:
    """A tokenizer whose tokens are bytes."""

    name_or_path, bos_token, bos_token_id, eos_token, eos_token_id = "bytes", None, None, "<end>", END

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        return list(text.encode())

    def decode(self, tokens: Sequence[int]) -> str:
        return bytes(token for token in tokens if token != END).decode()


TOKENIZER = Bytes()
RENDERER = RoleColonRenderer(TOKENIZER)


class Policy(TokenCompleter):
    """Says what it is given, in turn; an answer that ends with "…" was cut off."""

    def __init__(self, *answers: str) -> None:
        self.answers = list(answers)

    async def __call__(
        self, model_input: tinker.ModelInput, stop: Any, *, max_tokens: int | None = None
    ) -> TokensWithLogprobs:
        answer = self.answers.pop(0)
        cut = answer.endswith("…")
        tokens = TOKENIZER.encode(f" {answer}" if cut else f" {answer}\n\nUser:")
        return TokensWithLogprobs(tokens, [-1.0] * len(tokens), stop_reason="length" if cut else "stop")


class Question(ProblemEnv):
    """A question whose steps give a reward of their own for the word "please"."""

    def __init__(self) -> None:
        super().__init__(RENDERER, [{"role": "user", "content": "Hello."}, {"role": "assistant", "content": "Hi."}])

    def get_question(self) -> str:
        return "What is it worth?"

    def get_reference_answer(self) -> str:
        return "42"

    def check_answer(self, sample_str: str) -> bool:
        return "please" in sample_str

    def check_format(self, sample_str: str) -> bool:
        return True


class Group(ProblemGroupBuilder):
    """A group of questions whose rewards are the hook's."""

    def __init__(self, hook: Any, size: int) -> None:
        super().__init__(env_thunk=Question, num_envs=size)
        object.__setattr__(self, "hook", hook)

    async def compute_group_rewards(self, trajectory_group: Any, env_group: Any) -> Any:
        return await self.hook(trajectory_group, env_group)  # type: ignore[attr-defined]


async def rollout(hook: Any, *answers: str, strategy: Any = None) -> TrajectoryGroup:
    return await do_group_rollout(Group(hook, len(answers)), Policy(*answers), strategy=strategy or FailFast())


async def test_scores_are_added_to_the_rewards_of_the_steps():
    judge = WorthJudge()
    group = await rollout(compute_group_rewards(judge), "worth 90", "worth 20, please", "worth 50")
    assert group.final_rewards_G == [0.9, 0.2, 0.5]
    assert group.get_total_rewards() == [0.9, 1.2, 0.5]
    assert group.metrics_G[0]["judge/score"] == 0.9
    shown = judge.groups[0]
    assert truth_of(shown).reference == "42"
    assert [(m["role"], m["content"]) for m in shown.trajectories[0].messages()] == [
        ("user", "Hello."),
        ("assistant", "Hi."),
        ("user", "What is it worth?"),
        ("assistant", "worth 90"),
    ]


async def test_a_member_without_a_score_has_no_advantage_and_moves_no_other():
    hook = compute_group_rewards(WorthJudge(), unscored="member")
    group = await rollout(hook, "worth 90", "worth 99, withheld, please", "worth 10, please")
    assert group.get_total_rewards() == pytest.approx([0.9, 1.0, 1.1])
    (advantages,) = compute_advantages([group])
    assert advantages.tolist() == pytest.approx([-0.1, 0.0, 0.1], abs=1e-6)
    assert [metrics["judge/unscored"] for metrics in group.metrics_G] == [0.0, 1.0, 0.0]
    assert "judge/score" not in group.metrics_G[1]


GROUPS = [("group", ("worth 90", "worth 99, withheld, please", "worth 10")), ("raise", ("worth 90, please",) * 3)]


@pytest.mark.parametrize(("unscored", "answers"), GROUPS, ids=["a score is missing", "all alike"])
async def test_a_group_that_cannot_be_compared_is_constant_and_is_dropped(unscored: Any, answers: Any):
    group = await rollout(compute_group_rewards(WorthJudge(), unscored=unscored), *answers)
    assert group.get_total_rewards() == [0.0, 0.0, 0.0]
    scored = await rollout(compute_group_rewards(WorthJudge()), "worth 90", "worth 20")
    assert remove_constant_reward_groups([group, scored]) == [scored]


class AgentGroup(EnvGroupBuilder):
    def __init__(self, hook: Any, size: int) -> None:
        self.hook, self.size = hook, size

    async def make_envs(self) -> list[Any]:
        async def nothing(history: Any) -> Any:
            return 0.0, {}

        opening: Any = [{"role": "user", "content": "What is it worth?"}]
        return [build_agent_tool_env(RENDERER, [], opening, nothing, max_turns=2) for _ in range(self.size)]

    async def compute_group_rewards(self, trajectory_group: Any, env_group: Any) -> Any:
        return await self.hook(trajectory_group, env_group)


async def test_an_agent_s_history_is_shown_with_the_turn_that_was_cut_off():
    judge = WorthJudge()
    builder = AgentGroup(compute_group_rewards(judge), 2)
    group = await do_group_rollout(builder, Policy("worth 90", "it is worth 5 and…"))
    assert group.final_rewards_G == [0.9, 0.05]
    whole, cut = judge.groups[0].trajectories
    assert [message["content"] for message in whole.messages()] == ["What is it worth?", "worth 90"]
    assert cut.messages()[-1]["content"] == "it is worth 5 and…"
    assert (whole.status, cut.status) == ("finished", "truncated")


class Own(MessageEnv):
    async def initial_observation(self) -> Any:
        return [{"role": "user", "content": "What is it worth?"}]

    async def step(self, message: Any) -> MessageStepResult:
        self.said = message["content"]
        return MessageStepResult(0.0, True, [])


class OwnGroup(AgentGroup):
    async def make_envs(self) -> list[Any]:
        return [EnvFromMessageEnv(RENDERER, Own()) for _ in range(self.size)]


async def test_an_environment_of_one_s_own_says_what_was_said():
    with pytest.raises(JudgeError, match="conversation="):
        await do_group_rollout(OwnGroup(compute_group_rewards(WorthJudge()), 2), Policy("worth 9", "worth 8"))

    def conversation(trajectory: Any, env: Any) -> list[dict[str, str]]:
        return [{"role": "assistant", "content": env.message_env.said}]

    hook = compute_group_rewards(WorthJudge(), conversation=conversation)
    group = await do_group_rollout(OwnGroup(hook, 2), Policy("worth 9", "worth 8"))
    assert group.final_rewards_G == [0.09, 0.08]


async def test_the_page_s_group_judges_and_can_be_sent_to_another_process(tmp_path: Path, monkeypatch: Any):
    (tmp_path / "judged_group.py").write_text(program("Tinker"))
    monkeypatch.syspath_prepend(tmp_path)
    import judged_group  # type: ignore[import-not-found]

    builder = pickle.loads(pickle.dumps(judged_group.JudgedGroup(env_thunk=Question, num_envs=2)))
    group = await do_group_rollout(builder, Policy("It is 9 days old.", ""))
    assert math.isclose(group.final_rewards_G[0], 1.0)
    assert math.isclose(group.final_rewards_G[1], 0.0)
