"""An installed environment of verifiers as a scenario.

    verifiers:gsm8k?harness=null&tasks=200                     # a taskset, and who acts in it
    verifiers:desk-tasks?env=best-of-n&config={"n": 4}         # an environment by name, with further settings

The environment's own episodes are played, with its taskset, harness and rewards, and the policy behind a relay. Each
trainable agent's trace is a trajectory, whose sampled turns can be trained. `environment_reward` is the trace's
weighted sum of rewards. An episode succeeds if the environment's metric `success` says so, or its reward is at least
`success`: for comparison only.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, cast
from weakref import WeakKeyDictionary

from pydantic import BaseModel, Field, Json

from gavel.base.errors import GavelError
from gavel.integrations.verifiers.relay import Relay
from gavel.llm.types import Message
from gavel.prompts import render
from gavel.scenarios.chat_model import ChatModel
from gavel.scenarios.environment import REWARD, SUCCESS
from gavel.scenarios.episode import Episode
from gavel.scenarios.packaged_world import installed, parsed
from gavel.scenarios.scenario import Scenario, ScenarioError
from gavel.scenarios.task import Task
from gavel.scenarios.tools import described
from gavel.scenarios.trajectory import Trajectory

_START_SECONDS = 120.0


class VerifiersError(GavelError):
    """An environment of verifiers cannot be played."""


class VerifiersOptions(BaseModel):
    env: str = ""
    """The environment's id; by default the taskset's own, or one agent."""
    harness: str = ""
    """The id of the harness that the agent runs in; by default the taskset's own, or bash in a container."""
    runtime: str = ""
    """Where the harness runs: docker, …; by default this machine, if it runs no code that the model writes."""
    tasks: int = Field(default=1000, ge=1)
    """Max tasks of the taskset."""
    held_out: float = Field(default=0.2, ge=0, lt=1)
    """Share of the tasks that is held out, chosen by task."""
    success: float | None = None
    """Min weighted sum of rewards of a success; by default the environment's metric `success`, or else a sum of 1."""
    seconds: float = Field(default=1800.0, gt=0)
    """Max seconds of an episode."""
    config: Json[dict[str, Any]] = Field(default_factory=dict[str, Any])
    """Additional settings of the environment, as JSON."""


def scenario_at(address: str) -> Scenario:
    """The scenario of `verifiers:TASKSET?…`. Raises `ScenarioError`."""
    name, options, _ = parsed("verifiers", address, VerifiersOptions, all_known=True)
    loaders: Any = installed("verifiers.v1.utils.loaders", "verifiers", f"verifiers:{name}")
    try:
        settings = _settings(name, options, _runtime(loaders, name, options))
        environment = loaders.load_environment(loaders.resolve_env_config(settings))
        tasks = list(environment.taskset.take(options.tasks))
    except ScenarioError:
        raise
    except Exception as error:
        raise ScenarioError(
            f"the environment {name} of verifiers cannot be loaded: {described(error)}",
            "Install it into this environment; config={…} holds what its configuration needs.",
        ) from error
    games = _Environment(environment, options)
    return Scenario(
        f"verifiers-{name.rpartition('/')[2]}",
        rollout=games.play,
        tasks=[_task(index, task) for index, task in enumerate(tasks)],
        held_out=options.held_out,
        max_seconds=options.seconds,
        rubric=render("verifiers/rubric.j2").strip(),
        success=lambda trajectory: bool(trajectory.metrics.get(SUCCESS, 0.0)),
        hand_reward=lambda trajectory: float(trajectory.metrics.get(REWARD, 0.0)),
    )


def _runtime(loaders: Any, name: str, options: VerifiersOptions) -> str:
    """The runtime. Raises `ScenarioError` for a harness that would run the model's code on this machine without
    permission."""
    if options.runtime:
        return options.runtime
    loaders.import_taskset(name)
    harness = options.harness or loaders.default_harness_id(name)
    if loaders.harness_class(harness).EXECUTES_CODE:
        raise ScenarioError(
            f"the harness {harness} runs commands that the model writes, and no runtime is named for them",
            "Add runtime=docker (runtime=subprocess runs them on this machine), or harness=null for an agent without.",
        )
    return "subprocess"


def _settings(name: str, options: VerifiersOptions, runtime: str) -> Message:
    agent: Message = {"runtime": {"type": runtime}}
    if options.harness:
        agent["harness"] = {"id": options.harness}
    return {
        **({"id": options.env} if options.env else {}),
        "agent": agent,
        **options.config,
        "taskset": {"id": name, **options.config.get("taskset", {})},
    }


def _task(index: int, task: Any) -> Task:
    answer = task.data.model_dump(mode="json").get("answer")
    reference = None if answer in (None, "") else f"The answer: {answer}"
    return Task(id=str(task.key), user=str(task.data.prompt_text or ""), data={"index": index}, reference=reference)


class _Environment:
    """The episodes of an environment, which is served while one is played."""

    def __init__(self, environment: Any, options: VerifiersOptions) -> None:
        self._environment = environment
        self._tasks = list(environment.taskset.take(options.tasks))
        self._success = options.success
        self._served: WeakKeyDictionary[asyncio.AbstractEventLoop, _Served] = WeakKeyDictionary()

    async def play(self, model: ChatModel, task: Task, episode: Episode) -> list[Trajectory]:
        v1: Any = installed("verifiers.v1", "verifiers", "this scenario")
        client: Any = installed("verifiers.v1.configs.client", "verifiers", "this scenario")
        own = self._tasks[int(cast(Any, task.data["index"]))]
        served = self._served.setdefault(asyncio.get_running_loop(), _Served(self._environment))
        talks: dict[str, Trajectory] = {}
        async with served.held() as relay:
            config = client.EvalClientConfig(base_url=relay.url, api_key_var="GAVEL_RELAY_KEY")
            context = v1.ModelContext(model="policy", client=config)

            def register(trace: Any) -> None:
                talks[trace.id] = relay.register(trace.id, episode)

            try:
                done = await self._environment.run_episode(own, context, on_trace=register)
            finally:
                for session in talks:
                    relay.forget(session)
        acting = [trace for trace in done.traces if trace.agent.trainable and trace.id in talks]
        if not acting:
            told = done.errors[-1].message if done.errors else "no trainable agent acted"
            raise VerifiersError(f"the environment's episode failed: {told}")
        names = [str(trace.agent.name or "agent") for trace in acting]
        for number, (name, trace) in enumerate(zip(names, acting, strict=True)):
            trajectory = talks[trace.id]
            histories = trajectory.histories()
            main, *others = sorted(histories, key=lambda each: len(each.messages_and_choices), reverse=True)
            trajectory.messages_and_choices, trajectory.tools = main.messages_and_choices, main.tools
            trajectory.additional_histories = others
            if len(acting) > 1:
                again = names[:number].count(name)
                trajectory.agent = f"{name} {again + 1}" if names.count(name) > 1 else name
            self._record(trajectory, trace, done)
        return [talks[trace.id] for trace in acting]

    def _record(self, trajectory: Trajectory, trace: Any, done: Any) -> None:
        """Records rewards, metrics and the final status."""
        rewards = {name: each for name, each in trace.rewards.items() if each is not None}
        metrics = {name: float(value) for name, value in trace.metrics.items() if value is not None}
        found = metrics | {name: float(each.score) for name, each in rewards.items()}
        trajectory.metrics = {"turns": sum(1 for _ in trajectory.choices())}
        trajectory.metrics |= {f"verifiers/{name}": value for name, value in found.items()}
        if not trace.ok or done.errors:
            errors = [*trace.errors, *done.errors]
            trajectory.status = "failed"
            trajectory.status_reason = errors[-1].message[:1000] if errors else str(trace.stop_condition)
            return
        reward = float(sum(each.score * each.weight for each in rewards.values()))
        told = metrics.get(SUCCESS) if self._success is None else None
        succeeded = reward >= (1.0 if self._success is None else self._success) if told is None else told >= 1
        trajectory.metrics |= {REWARD: reward, SUCCESS: float(succeeded)}
        if trace.is_truncated or trace.is_timeout:
            trajectory.status, trajectory.status_reason = "truncated", str(trace.stop_condition)


class _Served:
    """The running resources of an environment, held in their own task while episodes are played."""

    def __init__(self, environment: Any) -> None:
        self._environment = environment
        self._relay = Relay()
        self._lock = asyncio.Lock()
        self._users = 0
        self._task: asyncio.Task[None] | None = None
        self._leave = asyncio.Event()

    @asynccontextmanager
    async def held(self) -> AsyncGenerator[Relay]:
        async with self._lock:
            if self._task is None or self._task.done():
                ready, self._leave = asyncio.get_running_loop().create_future(), asyncio.Event()
                self._task = asyncio.create_task(self._live(ready, self._leave))
                try:
                    await asyncio.wait_for(asyncio.shield(ready), _START_SECONDS)
                except TimeoutError as error:
                    self._task.cancel()
                    raise VerifiersError(f"the environment was not ready within {_START_SECONDS:g} s") from error
            self._users += 1
        try:
            yield self._relay
        finally:
            self._users -= 1
            if not self._users:
                self._leave.set()
                self._task = None

    async def _live(self, ready: "asyncio.Future[None]", leave: asyncio.Event) -> None:
        try:
            async with self._relay.serving(), self._environment.serving():
                ready.set_result(None)
                await leave.wait()
        except Exception as error:
            if not ready.done():
                ready.set_exception(VerifiersError(f"the environment cannot be served: {described(error)}"))
