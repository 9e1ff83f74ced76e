"""What an agent did: trajectories, and the groups in which they are compared.

A trajectory is a list of OpenAI message dicts (context, never trained) and OpenAI `Choice`s
(sampled, trained). A `Choice` from a Gavel endpoint carries, beside the standard `logprobs`, the
extra fields `token_ids`, `prompt_token_ids` and `policy_version`. JSON round trips lose nothing.
"""

import asyncio
import inspect
import json
import numbers
import time
import traceback
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Annotated, Any, Literal, Self, TypeVar

from openai.types.chat.chat_completion import Choice
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, JsonValue, PrivateAttr
from pydantic_core import to_jsonable_python

from scenarios.judgement import GroupJudgement, Judgement

T = TypeVar("T")

Message = dict[str, Any]
"""One OpenAI chat message."""


def _message_or_choice(value: Any) -> Any:
    if isinstance(value, dict) and isinstance(value.get("message"), dict) and "finish_reason" in value:
        # As tolerant as the OpenAI client: servers send choices (finish_reason "abort", a null log-prob) that the
        # model's own validation would refuse, and a stored choice must be readable again.
        return Choice.construct(**value)
    return value


MessageOrChoice = Annotated[Choice | Message, BeforeValidator(_message_or_choice)]
MessagesAndChoices = list[MessageOrChoice]


def to_messages(items: Iterable[Choice | Message]) -> list[Message]:
    """The conversation as plain OpenAI message dicts."""
    return [
        item.message.model_dump(exclude_none=True, mode="json") if isinstance(item, Choice) else item for item in items
    ]


def _jsonable(value: Any) -> Any:
    match value:
        case numbers.Integral():
            return int(value)
        case numbers.Real():  # numpy's scalars among them
            return float(value)
        case _:
            return to_jsonable_python(value)


class Record(BaseModel):
    """A value that survives JSON unchanged: NaN, infinities and lone surrogates included."""

    model_config = ConfigDict(ser_json_inf_nan="constants")

    def to_json(self) -> str:
        """One line of JSON, ASCII only."""
        # Dumped to Python, not to JSON: pydantic's JSON mode replaces lone surrogates in the keys of a dict.
        return json.dumps(self.model_dump(warnings=False), default=_jsonable, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """The record that `to_json` wrote.

        Raises `ValueError` (`json.JSONDecodeError`, `pydantic.ValidationError`) or `TypeError` on anything else.
        """
        return cls.model_validate(json.loads(text))


class History(Record):
    """A further conversation of the same trajectory: a sub-agent, or a context rewritten on the way."""

    messages_and_choices: MessagesAndChoices = Field(default_factory=list)
    tools: list[Message] | None = None

    def messages(self) -> list[Message]:
        return to_messages(self.messages_and_choices)


class Trajectory(Record):
    """One attempt of an agent at one task."""

    messages_and_choices: MessagesAndChoices = Field(default_factory=list)
    tools: list[Message] | None = None
    """OpenAI tool schemas that the agent was shown."""
    additional_histories: list[History] = Field(default_factory=list)
    reward: float | None = None
    """None = not scored. Such a trajectory is never trained."""
    step_rewards: list[float] | None = None
    """One for each sampled turn, in the order of `choices()`, besides `reward`, which belongs to the end. Only a loss
    with a value head (`Ppo`) learns from them."""
    judgement: Judgement | None = None
    metrics: dict[str, float | int | bool] = Field(default_factory=dict)
    metadata: dict[str, JsonValue] = Field(default_factory=dict)
    logs: list[str] = Field(default_factory=list)
    status: Literal["finished", "truncated", "failed"] = "finished"
    status_reason: str | None = None
    policy_version: int | None = None
    """Training step of the policy that acted."""

    def messages(self) -> list[Message]:
        """The conversation as plain OpenAI message dicts, ready for the next request."""
        return to_messages(self.messages_and_choices)

    def histories(self) -> list[History]:
        """The main conversation first, then the additional ones."""
        main = History(messages_and_choices=self.messages_and_choices, tools=self.tools)
        return [main, *self.additional_histories]

    def choices(self) -> Iterator[Choice]:
        """Every sampled turn of every history, in order."""
        for history in self.histories():
            yield from (item for item in history.messages_and_choices if isinstance(item, Choice))

    def log(self, line: str) -> None:
        self.logs.append(line)

    def finish(self) -> Self:
        """Kept for code that calls it at the end of a rollout; marks the trajectory as finished."""
        self.status = "finished"
        return self

    @contextmanager
    def track_duration(self, name: str) -> Iterator[None]:
        """Adds the block's seconds to `metrics["duration/<name>"]`."""
        started = time.monotonic()
        try:
            yield
        finally:
            key = f"duration/{name}"
            self.metrics[key] = self.metrics.get(key, 0.0) + time.monotonic() - started


class RolloutError(Record):
    """An exception of a group, in a form that can be stored."""

    type: str
    message: str
    traceback: str = ""

    @classmethod
    def of(cls, error: BaseException) -> Self:
        lines = traceback.format_exception(error)
        return cls(type=type(error).__name__, message=str(error), traceback="".join(lines))


MemberRunner = Callable[[Awaitable[Trajectory]], Awaitable[Trajectory]]


async def contained(awaitable: Awaitable[T]) -> T:
    """What `awaitable` gives; a cancellation that it made itself is an ordinary `RuntimeError`.

    Only a cancellation of the running task goes through. A rollout that cancels itself (a cancel scope of its HTTP
    client, say) would otherwise take its whole group with it, without a trace.
    """
    try:
        return await awaitable
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise RuntimeError("it was cancelled from within") from error


def discard(awaitable: object) -> None:
    """Gives up on an awaitable: one that never ran is closed, a task is cancelled. A finished one stays as it is."""
    match awaitable:
        case TrajectoryGroup():
            awaitable.discard_pending()
        case Coroutine():
            awaitable.close()
        case asyncio.Future():
            awaitable.cancel()


async def run_member(member: Awaitable[Trajectory]) -> Trajectory:
    """Runs one member, unbounded. Raises `TypeError` if it returns anything but a trajectory."""
    trajectory = await contained(member)
    if not isinstance(trajectory, Trajectory):
        raise TypeError(f"a rollout must return a Trajectory; this one returned {type(trajectory).__name__}")
    return trajectory


member_runner: ContextVar[MemberRunner] = ContextVar("member_runner", default=run_member)
"""How the members of a pending group are run here; `gather` bounds and counts them through it."""


class PendingGroupError(RuntimeError):
    """A group of awaitables was read before it was awaited."""


class TrajectoryGroup(Record):
    """Trajectories of the same task, in input order.

    Built from trajectories, from exceptions, or from awaitables of trajectories. With awaitables
    the group is *pending*: `await group` (or a gather function) runs them all at once, puts what
    they return in input order, and puts what they raise into `exceptions`.
    """

    trajectories: list[Trajectory] = Field(default_factory=list)
    metadata: dict[str, JsonValue] = Field(default_factory=dict)
    metrics: dict[str, float | int | bool] = Field(default_factory=dict)
    logs: list[str] = Field(default_factory=list)
    exceptions: list[RolloutError] = Field(default_factory=list)
    judgement: GroupJudgement | None = None

    _pending: list[Trajectory | BaseException | Awaitable[Trajectory]] = PrivateAttr(default_factory=list)

    def __init__(
        self,
        trajectories: Iterable[Trajectory | BaseException | Awaitable[Trajectory] | Message] = (),
        *,
        exceptions: Iterable[RolloutError | BaseException | Message] = (),
        **fields: Any,
    ) -> None:
        members = list(trajectories)
        errors = [RolloutError.of(e) if isinstance(e, BaseException) else e for e in exceptions]
        if any(inspect.isawaitable(member) for member in members):
            super().__init__(**fields | {"exceptions": errors})
            self._pending = members  # type: ignore[assignment]
            return
        errors += [RolloutError.of(member) for member in members if isinstance(member, BaseException)]
        kept = [member for member in members if not isinstance(member, BaseException)]
        super().__init__(**fields | {"trajectories": kept, "exceptions": errors})

    @property
    def pending(self) -> int:
        """Members that have not been run yet."""
        return len(self._pending)

    def __await__(self) -> Generator[Any, None, Self]:
        return self._run().__await__()

    async def _run(self) -> Self:
        members, self._pending = self._pending, []
        run = member_runner.get()

        async def outcome(member: Trajectory | BaseException | Awaitable[Trajectory]) -> Trajectory | BaseException:
            if isinstance(member, Trajectory | BaseException):
                return member
            try:
                return await run(member)
            except Exception as error:
                return error

        try:
            async with asyncio.TaskGroup() as tasks:
                running = [tasks.create_task(outcome(member)) for member in members]
        finally:
            for member in members:  # a cancelled task may never have reached its member
                discard(member)
        for task in running:
            match task.result():
                case Trajectory() as trajectory:
                    self.trajectories.append(trajectory)
                case BaseException() as error:
                    self.exceptions.append(RolloutError.of(error))
        return self

    def discard_pending(self) -> None:
        """Gives up the members that have not been run yet."""
        members, self._pending = self._pending, []
        for member in members:
            discard(member)

    def _settled(self) -> list[Trajectory]:
        if self._pending:
            raise PendingGroupError(
                f"this group still has {self.pending} rollouts to run: `await group` first, "
                "or pass it to gather_trajectory_groups"
            )
        return self.trajectories

    def __iter__(self) -> Iterator[Trajectory]:  # type: ignore[override]
        return iter(self._settled())

    def __len__(self) -> int:
        return len(self._settled())

    def log(self, line: str) -> None:
        self.logs.append(line)
