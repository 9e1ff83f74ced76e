"""One of several agents in an episode: its own conversation, sampled by the policy or by another model.

    async def play(model, task: gavel.Task, episode: gavel.Episode):
        planner = gavel.Agent(episode, "planner", system="You plan.")
        worker = gavel.Agent(episode, "worker", system="You do one step.", tools=[search])
        plan = await planner.ask(task.user)
        await planner.ask(await worker.ask(plan))
        return gavel.together(planner, worker)                  # one attempt, judged as a whole
        return [planner.trajectory, worker.trajectory]          # or each for itself, with its own reward

Only turns that the policy sampled are `Choice`s, so only those are ever trained. Turns of other models are plain text.
"""

import asyncio
import re
from collections.abc import Sequence

from openai import AsyncOpenAI, OpenAIError
from openai.types.chat.chat_completion import ChatCompletion

from gavel.base.errors import GavelError
from gavel.llm.client import ChatAgent
from gavel.llm.types import Message
from gavel.scenarios.chat_model import ChatModel, ChatRequest, FunctionModel
from gavel.scenarios.episode import Episode, NoTurnError
from gavel.scenarios.rollout import Conversation
from gavel.scenarios.seeds import seed_of
from gavel.scenarios.tools import Toolbox, ToolFunction, described
from gavel.scenarios.trajectory import History, Trajectory

CALLS, COST = "other_models_calls", "other_models_cost_usd"
"""Episode metrics: requests to LiteLLM models that play agents, and their cost, which is absent if unknown."""
_RETRIES = 2
"""Retries of a request to a LiteLLM model whose server is busy."""
_WORST = ("failed", "truncated", "finished")


class AgentError(GavelError):
    """A model that plays an agent returned no turn."""


class Agent:
    """An agent with a conversation of its own, `trajectory`."""

    def __init__(
        self,
        episode: Episode,
        name: str,
        *,
        system: str = "",
        tools: Sequence[ToolFunction] = (),
        model: ChatModel | str | None = None,
        steps_back: int = 0,
        max_calls: int = 8,
    ) -> None:
        """`name` is unique in the episode and shown to the judge. `tools`: plain functions, as for a scenario.

        `model`: None for the policy that acts in this episode, whose turns are trained; else the id of a LiteLLM model,
        or anything that serves chat completions, whose turns are not. `steps_back`: the policy from that many training
        steps ago, not trained either. The backend has to serve it (`LocalBackend(versions=steps_back + 1)`, or
        `earlier_policies` in the settings of a run); if it has none that old, the oldest one plays. The trajectory's
        `policy_version` is its step.

        `max_calls`: turns with tool calls that one `ask` may take. Raises `AgentError` for a name that is taken, and
        for an episode without a policy; `UnknownModelError` and `MissingKeyError` of LiteLLM models.
        """
        if not isinstance(episode, Episode):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise AgentError(
                f"an agent is made of an episode, not of a {type(episode).__name__}",
                "Annotate a parameter of the rollout: async def play(model, task, episode: gavel.Episode).",
            )
        if not name.strip():
            raise AgentError("an agent needs a name", "The judge is shown it: Agent(episode, 'planner').")
        if name in episode.agents:
            raise AgentError(f"two agents of an episode are called {name}", "Give every Agent a name of its own.")
        if episode.model is None:
            raise AgentError("this episode has no policy", "Make agents within Scenario(rollout=…).")
        if steps_back and model is not None:
            raise AgentError("steps_back= is of the policy, and model= names another model", "Leave one of them out.")
        episode.agents.append(name)
        self.name = name
        self.is_policy = (model is None or model is episode.model) and not steps_back
        self.trajectory = Trajectory(agent=name)
        if system:
            self.trajectory.messages_and_choices.append({"role": "system", "content": system})
        given = episode.model if model is None else model
        chat = _make_litellm_model(given, episode) if isinstance(given, str) else given
        self._conversation = Conversation(
            episode, chat, self.trajectory, Toolbox(tools, episode), trained=self.is_policy
        )
        self._max_calls = max_calls
        self._seed = None if episode.seed is None else seed_of(episode.seed, "agent", name) % 2**53
        self._steps_back = steps_back
        self._asking = asyncio.Lock()

    @property
    def turns(self) -> int:
        """Number of this agent's turns so far."""
        return int(self.trajectory.metrics["turns"])

    async def ask(self, text: str) -> str:
        """Gives the agent `text` in the next user turn, runs the tools that it calls, and returns its answer.

        The agent's trajectory becomes `truncated` if an answer reaches the token limit, after more than `max_calls`
        turns with tool calls, or if the conversation exceeds the model's context. Raises `AgentError` if the model
        returns no turn, and while another `ask` is pending.
        """
        if self._asking.locked():
            raise AgentError(f"the agent {self.name} is asked twice at once", "Await one ask before the next.")
        async with self._asking:
            self.tell(text)
            conversation = self._conversation
            if self._steps_back:
                earlier = await _find_earlier_policy(conversation.client, conversation.served_as, self._steps_back)
                conversation.served_as, self._steps_back = earlier, 0
            for _ in range(self._max_calls + 1):
                try:
                    choice = await conversation.take_turn(self._seed)
                except NoTurnError as error:
                    raise AgentError(f"the model of the agent {self.name} failed: {error.message}") from error
                if choice is None:
                    return ""
                is_last = choice.finish_reason == "length" or not choice.message.tool_calls
                if is_last or await conversation.answer_calls(choice):
                    return choice.message.content or ""
            conversation.truncate(f"{self._max_calls} turns with tool calls were used up")
            return ""

    def tell(self, text: str) -> None:
        """Adds `text` to the agent's next user turn; the judge sees it even if no further turn follows."""
        if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise AgentError(f"{self.name} is told a text, not a {type(text).__name__}", "Pass a str.")
        items = self.trajectory.messages_and_choices
        match items[-1] if items else None:
            case {"role": "user", "content": str(before)}:
                items[-1] = {"role": "user", "content": f"{before}\n\n{text}"}
            case _:
                items.append({"role": "user", "content": text})


def together(*agents: Agent) -> Trajectory:
    """One trajectory of cooperating agents: the first one's conversation, with the others' as its histories.

    Its turns and tool errors are summed, and its status is the worst.
    """
    if not agents:
        raise AgentError("there are no agents to put together", "Write together(planner, worker).")
    first, *others = parts = [agent.trajectory for agent in agents]
    whole = first.model_copy(deep=True)
    for each in others:
        history = History(agent=each.agent, messages_and_choices=each.messages_and_choices, tools=each.tools)
        whole.additional_histories.append(history)
        for name, value in each.metrics.items():
            whole.metrics[name] = whole.metrics.get(name, 0) + value
        whole.logs += each.logs
    worst = min(parts, key=lambda each: _WORST.index(each.status))
    whole.status, whole.status_reason = worst.status, worst.status_reason
    versions = [each.policy_version for each in parts if each.policy_version is not None]
    whole.policy_version = min(versions, default=None)
    return whole


async def sample_turn(player: ChatAgent, request: ChatRequest, *, retries: int) -> ChatCompletion:
    """The player's turn, as a rollout asks for it; LiteLLM sends each attempt again so many times."""
    return await player.turn(
        request.messages,
        request.tools,
        temperature=request.temperature,
        max_completion_tokens=request.max_tokens,
        seed=None if request.seed is None else request.seed % 2**31,
        max_retries=retries,
    )


def _make_litellm_model(model: str, episode: Episode) -> ChatModel:
    """Samples from a LiteLLM model, and counts its requests and cost in the episode."""
    player = ChatAgent(model)

    async def turn(request: ChatRequest) -> ChatCompletion | Message:
        before = player.cost_usd
        reply = await sample_turn(player, request, retries=_RETRIES)
        metrics = episode.trajectory.metrics
        metrics[CALLS] = metrics.get(CALLS, 0) + 1
        if before is not None and player.cost_usd is not None:
            metrics[COST] = metrics.get(COST, 0.0) + player.cost_usd - before
        return reply

    return FunctionModel(model, turn)


async def _find_earlier_policy(client: AsyncOpenAI, name: str, steps: int) -> str:
    """The policy this many training steps before the one called `name`, which is `model@step`; else the oldest
    served."""
    model, _, live = name.rpartition("@")
    if not model or not live.isdecimal():
        raise AgentError(f"{name} is no policy that is trained: it has no earlier steps", "Leave steps_back= out.")
    try:
        served = [each.id for each in (await client.models.list()).data]
    except OpenAIError as error:
        raise AgentError(f"the policies that are served cannot be listed: {described(error)}") from error
    found = [int(each.removeprefix(f"{model}@")) for each in served if re.fullmatch(rf"{re.escape(model)}@\d+", each)]
    wanted = int(live) - steps
    older = [step for step in found if step <= wanted]
    return f"{model}@{max(older) if older else min(found, default=int(live))}"
