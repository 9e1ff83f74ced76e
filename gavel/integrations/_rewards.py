"""Shared parts of all trainers' rewards: build members from prompts and completions, judge them, return rewards.

    scorer = Scorer("openai/gpt-5-mini", "- is brief", "member")
    right, missing = await scorer.score([member("2 + 2?", "4"), member("2 + 2?", "5")])
    right.reward, missing.reward     # 0.9, None: where the judge gave no score, never a number
    right.number, missing.number     # 0.9, 0.9: for trainers that need one beside their mask, the mean of the others

Trainers call their hooks from several threads and event loops, in processes to which the hooks are sent, and without a
loop. Connections belong to the loop that opened them, so a judge is called on one background loop for the life of a
process. No framework is imported before its trainer has imported it.
"""

import asyncio
import atexit
import base64
import io
import logging
import os
import sys
import threading
from collections.abc import Coroutine, Hashable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from importlib import import_module
from itertools import chain, groupby
from operator import itemgetter
from typing import Any, Literal, TypeVar, cast, get_args

from gavel.base.errors import run_all
from gavel.judge.config import JudgeConfig
from gavel.judge.errors import JudgeError
from gavel.judge.judge import Judge
from gavel.judge.panel.juror import Models
from gavel.judge.prompt.provider_formats import opened_thoughts
from gavel.judge.rubric import Rubric
from gavel.judge.service.client import URL_VARIABLE, JudgeClient
from gavel.llm.types import Message
from gavel.scenarios.formats import chat
from gavel.scenarios.formats.row import RowError
from gavel.scenarios.formats.row import tools as openai_tools
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.judgement import GroupJudgement, Judgement
from gavel.scenarios.tools import Toolbox
from gavel.scenarios.trajectory import Trajectory
from gavel.scenarios.truth import KEY, read_truth

JudgeLike = Judge | JudgeClient | JudgeConfig | Models
"""A judge, a service client, a judge's settings, a service's address, or judge models."""
Unscored = Literal["group", "member", "raise"]
"""Handling of members that the judge did not score: no reward for the whole "group", since trainers that sum several
rewards count a missing one as 0; none for that "member"; or "raise" `JudgeError`."""
Side = str | Sequence[Message]
"""A prompt or a completion: text, or messages."""
Choice = TypeVar("Choice", bound=str)
T = TypeVar("T")
_logger = logging.getLogger("gavel.rewards")


@dataclass(frozen=True, slots=True)
class Scored:
    """What the judge says of one member."""

    reward: float | None
    """None = not scored, or left out with a member of its group that was not."""
    number: float
    """The reward; without one the mean of the group's others, see `with_mean`."""
    judgement: Judgement
    """Without its votes."""
    reason: str
    """Why it has no reward; where the group was scored whole, of no meaning."""


def with_mean(rewards: Sequence[float | None]) -> list[float]:
    """The rewards, with their mean in place of missing ones; all 0.0 if every one is missing.

    The mean leaves the group's baseline unchanged. It is no score: callers mask the member, or explain why its
    advantage is zero. A framework that divides by the group's standard deviation counts it among the members.
    """
    given = [reward for reward in rewards if reward is not None]
    mean = sum(given) / len(given) if given else 0.0
    return [mean if reward is None else reward for reward in rewards]


class Scorer:
    """Calls one judge on the background loop, from any thread and any event loop.

        Scorer("openai/gpt-5-mini", "…")        a model, or several: a `gavel.Judge` in this process
        Scorer("http://127.0.0.1:8080")         a judge service, asked by a `gavel.JudgeClient`
        Scorer(gavel.Judge(…, orders=4))        a judge with its own settings; a JudgeConfig, a JudgeClient
        Scorer()                                GAVEL_JUDGE_URL's service, else GAVEL_JUDGE_MODEL

    It can be pickled, unless it was made from a `Judge`. Keys of services and models are not included: they come from
    the other process's environment.
    """

    def __init__(
        self, judge: JudgeLike | None = None, rubric: Rubric | str | None = None, unscored: Unscored = "group"
    ) -> None:
        """`rubric`: for a judge given by its models or its address; others have their own.

        Raises `JudgeError` if no judge is named, if a judge with settings is given a rubric too, and for an unknown
        `unscored`.
        """
        self._given = (judge, rubric)
        self._unscored: Unscored = checked(unscored)
        self._judge = _judge(judge, rubric)

    async def score(self, members: Iterable[Trajectory]) -> list[Scored]:
        """Judges one group. Raises `JudgeError` as `Judge.score` and `JudgeClient.score` do."""
        return (await self.score_all([TrajectoryGroup(members)]))[0]

    async def score_all(self, groups: Sequence[TrajectoryGroup]) -> list[list[Scored]]:
        """Judges the groups concurrently; returns them in order. The first error ends the others."""
        return await submitted(run_all(self._score(group) for group in groups))

    def score_all_now(self, groups: Sequence[TrajectoryGroup]) -> list[list[Scored]]:
        """The same for a synchronous hook, which may be called in a thread with a running event loop."""
        return run(run_all(self._score(group) for group in groups))

    async def _score(self, group: TrajectoryGroup) -> list[Scored]:
        """Judges a group, and logs why rewards are missing.

        A group of equal members has no rewards in any case: there is nothing to compare, and nothing has failed. Raises
        `JudgeError` for another unscored member when `unscored` is "raise", and the error that stopped the judge (an
        exhausted budget) if members are unscored because of it.
        """
        judged = await self._judge.score(group)
        whole = judged.judgement or GroupJudgement(status="unscored")
        if whole.status in ("partial", "unscored") and isinstance(self._judge, Judge) and self._judge.stopped:
            raise self._judge.stopped
        judgements = [(each.judgement or Judgement()).model_copy(update={"votes": []}) for each in judged]
        rewards = [each.reward for each in judged]
        missing = [one.reason for one, reward in zip(judgements, rewards, strict=True) if reward is None]
        why = next(filter(None, missing), None) or whole.reason or "no reason was given"
        if missing and whole.status != "degenerate" and self._unscored != "member":
            if self._unscored == "raise":
                raise JudgeError(
                    f"the judge scored {len(rewards) - len(missing)} of {len(rewards)} members of a group: {why}.",
                    'Mend what it says, or go on without them: unscored="group" or "member".',
                )
            rewards = [None] * len(rewards)
        if missing:
            level = logging.INFO if whole.status == "degenerate" else logging.WARNING
            left_out = rewards.count(None)
            _logger.log(level, "%d of %d members of a group are left out: %s", left_out, len(rewards), why)
        return [
            Scored(reward, number, one, one.reason or why)
            for reward, number, one in zip(rewards, with_mean(rewards), judgements, strict=True)
        ]

    def __getstate__(self) -> tuple[Any, ...]:
        judge, rubric = self._given
        if isinstance(judge, Judge):
            raise JudgeError(
                "this trainer sends its reward to another process, and a Judge cannot go there.",
                "Give a model's name, gavel.JudgeConfig(…) or the address of a judge service instead.",
            )
        if isinstance(self._judge, JudgeClient):
            judge, rubric = self._judge, None
        return judge, rubric, self._unscored

    def __setstate__(self, given: tuple[Any, ...]) -> None:
        self.__init__(*given)

    def __deepcopy__(self, _: dict[int, Any]) -> "Scorer":
        return self  # never modified, and its judge may be shared


def _judge(judge: JudgeLike | None, rubric: Rubric | str | None) -> Judge | JudgeClient:
    if isinstance(judge, Judge | JudgeClient | JudgeConfig):
        if rubric is not None:
            raise JudgeError(
                f"a {type(judge).__name__} has its own rubric.", "Give it the rubric, or name its models here instead."
            )
        return judge.build() if isinstance(judge, JudgeConfig) else judge
    if judge is None and os.environ.get(URL_VARIABLE):
        judge = os.environ[URL_VARIABLE]
    if isinstance(judge, str) and judge.startswith(("http://", "https://")):
        if isinstance(rubric, Rubric):
            raise JudgeError("a service takes a rubric as text.", "Write it as one, or name a preset of the service.")
        return JudgeClient(judge, options=None if rubric is None else {"rubric": rubric})
    return Judge(judge, rubric=rubric)


def checked(unscored: Choice, choices: object = Unscored) -> Choice:
    """Returns the choice. Raises `JudgeError` if it is not in `choices`, a Literal."""
    if unscored not in get_args(choices):
        raise JudgeError(
            f"there is no unscored={unscored!r} here.", f"Say one of: {', '.join(map(repr, get_args(choices)))}."
        )
    return unscored


def group_size(name: str, value: object) -> int:
    """Number of a framework's members per prompt, parsed if it is text; `name` is the option's.

    Raises `JudgeError` unless it is an integer of at least 2: a wrong size would judge a group in parts, or wait for
    members that never come.
    """
    text = str(value)
    if isinstance(value, bool) or not text.isdecimal() or int(text) < 2:
        raise JudgeError(
            f"{name}={value!r} is no size of a group.",
            "Give how many attempts are made at each prompt: 2 or more, since they are compared with each other.",
        )
    return int(text)


def groups_of(keys: Iterable[Hashable], size: int | None = None) -> list[list[int]]:
    """Indices of each group's members, in order: members with equal keys are a group.

    If their number is a multiple of `size`, as when a prompt was drawn twice, each run of `size` is a group.
    """
    by_key: dict[Hashable, list[int]] = {}
    for number, key in enumerate(keys):
        by_key.setdefault(key, []).append(number)
    found: list[list[int]] = []
    for same in by_key.values():
        step = size if size and len(same) % size == 0 else len(same)
        found += [same[start : start + step] for start in range(0, len(same), step)]
    return found


def by_member(groups: Iterable[Sequence[int]], results: Iterable[Sequence[T]]) -> list[T]:
    """The results of each group's members in the order of all members, whose indices `groups` holds."""
    pairs = (zip(group, own, strict=True) for group, own in zip(groups, results, strict=True))
    return [one for _, one in sorted(chain.from_iterable(pairs), key=itemgetter(0))]


def member(prompt: Side, completion: Side, *, tools: Sequence[Any] | None = None, **fields: Any) -> Trajectory:
    """Builds one attempt. Texts become a user's message and the assistant's; messages may be of any known form.

    The policy's text is never parsed: a completion that looks like JSON is text. `tools`: functions or schemas that the
    policy was shown; `fields`: other fields of the trajectory. Raises `RowError` for anything but text or messages.
    """
    if isinstance(prompt, str) and isinstance(completion, str):
        completion = opened_thoughts(prompt) + completion  # a completion truncated within its thoughts has no answer
    items = [*messages_of(prompt, "user"), *messages_of(completion, "assistant")]
    messages, _ = chat.messages(items, "a member of the group")
    return Trajectory(messages_and_choices=list(messages), tools=tool_schemas(tools), **fields)


def truth_metadata(fields: Mapping[str, Any], reference: Any = None) -> dict[str, Any]:
    """A member's metadata with the rubric, reference (or answer) and criteria in the columns of its task.

    `reference`: used if the columns have none. Every member has its own, so that a group of different tasks is
    rejected.
    """
    truth = read_truth(fields, of_row=True)
    if truth.reference is None and reference is not None:
        truth = read_truth({**fields, "reference": reference})
    return {KEY: truth.dump()} if truth else {}


def tool_schemas(tools: Sequence[Any] | None) -> list[Message] | None:
    """Schemas in OpenAI's form, from functions and schemas of any known form."""
    if not tools:
        return None
    schemas = openai_tools([tool for tool in tools if not callable(tool)]) or []
    return [*schemas, *Toolbox(tool for tool in tools if callable(tool)).schemas]


def messages_of(side: Side, role: str) -> list[Message]:
    """Text as a message of this role; messages unchanged, with decoded images as sendable data URLs."""
    if side is None:  # pyright: ignore[reportUnnecessaryComparison]
        raise RowError("a prompt or a completion is None.", 'Give text or messages; what was not written is "".')
    if isinstance(side, str):
        return [{"role": role, "content": side}]
    return [_with_image_urls(item) if isinstance(item, dict) else item for item in side]  # pyright: ignore[reportUnnecessaryIsInstance]


def _with_image_urls(message: Message) -> Message:
    content = message.get("content")
    if not isinstance(content, list):
        return message
    return {**message, "content": [_sendable(block) for block in cast(list[Any], content)]}


def _sendable(block: Any) -> Any:
    if not isinstance(block, dict) or cast(Message, block).get("type") != "image":
        return cast(Any, block)
    image: Any = cast(Message, block).get("image")
    pil = sys.modules.get("PIL.Image")  # whoever holds a PIL image has imported PIL
    if pil is not None and isinstance(image, pil.Image):
        png = io.BytesIO()
        image.save(png, format="PNG")
        image = f"data:image/png;base64,{base64.b64encode(png.getvalue()).decode()}"
    is_url = isinstance(image, str) and image.startswith(("data:", "http://", "https://"))
    return {"type": "image_url", "image_url": {"url": image}} if is_url else cast(Any, block)


def turns(tokenizer: Any, ids: Iterable[int], sampled: Iterable[int]) -> list[Message]:
    """The turns in a token sequence, for trainers that keep no messages.

        turns(tokenizer, [5, 6, 7, 8], [1, 1, 0, 1])     assistant: 5 6 · user: 7 · assistant: 8

    `sampled` is 1 for each token of the policy, else 0: the tokens in between are the user's, including the chat
    template's. Special tokens and empty turns are dropped.
    """
    found: list[Message] = []
    for by_policy, run_of_tokens in groupby(zip(ids, sampled, strict=True), key=lambda pair: bool(pair[1])):
        text = tokenizer.decode([token for token, _ in run_of_tokens], skip_special_tokens=True)
        if text.strip():
            found.append({"role": "assistant" if by_policy else "user", "content": text})
    return found


def part(module: str, name: str) -> Any:
    """Looks up `name` in a framework's module when its trainer calls a hook. Raises `ImportError` without it."""
    return getattr(import_module(module), name)


_END_SECONDS = 5.0
"""Seconds at process exit for cancelled tasks to end."""
_lock = threading.Lock()
_background: asyncio.AbstractEventLoop | None = None


def _in_forked_child() -> None:
    global _background, _lock
    _background = None  # the child has the loop's object without its thread
    _lock = threading.Lock()  # a thread of the parent may have held the lock


os.register_at_fork(after_in_child=_in_forked_child)


def run(work: Coroutine[Any, Any, T]) -> T:
    """Runs the coroutine on the background loop and returns its result; interrupting the waiting thread cancels it."""
    future = _submit(work)
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise


async def submitted(work: Coroutine[Any, Any, T]) -> T:
    """Runs the coroutine on the background loop and returns its result; cancelling the waiting task cancels it."""
    return await asyncio.wrap_future(_submit(work))


def _submit(work: Coroutine[Any, Any, T]) -> "Future[T]":
    global _background
    with _lock:
        _background = _background or _start()
    return asyncio.run_coroutine_threadsafe(work, _background)


def _start() -> asyncio.AbstractEventLoop:
    """A loop in a thread. At exit its tasks are cancelled, so that nothing is torn down while it works."""
    started: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = Future()

    async def serve() -> None:
        ends = asyncio.Event()
        started.set_result((asyncio.get_running_loop(), ends))
        await ends.wait()

    thread = threading.Thread(target=asyncio.run, args=(serve(),), name="gavel-rewards", daemon=True)
    thread.start()
    loop, ends = started.result()

    def end() -> None:
        if loop is _background:  # a forked child has not the thread
            loop.call_soon_threadsafe(ends.set)
            thread.join(_END_SECONDS)

    atexit.register(end)
    return loop
