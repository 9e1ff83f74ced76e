"""The Python client of the service: scores groups as a `Judge` does, over HTTP.

    client = gavel.JudgeClient("http://127.0.0.1:8080")
    judged = await client.score(group)                 # a new group with rewards and judgements, as of Judge.score
    judged = client.score_now(group)                   # the same without an event loop

A request that fails on the way, or meets a service that is busy or restarting, is sent again with the same idempotency
key until the deadline, so a group is judged once however often it is sent. Importing this loads no model library.
"""

import asyncio
import copy
import json
import logging
import os
import re
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote
from weakref import WeakKeyDictionary

import httpx
from pydantic_core import PydanticSerializationError, to_json, to_jsonable_python
from tenacity import AsyncRetrying, RetryCallState, Retrying, retry_if_exception_type, wait_random_exponential

from gavel.base.network import is_on_this_machine
from gavel.scenarios.errors import JudgeError
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.judged_copy import with_judgements
from gavel.scenarios.judgement import GroupJudgement, GroupStatus, Judgement
from gavel.scenarios.trajectory import History, Trajectory, to_messages
from gavel.scenarios.truth import truth_of

URL_VARIABLE = "GAVEL_JUDGE_URL"
KEY_VARIABLE = "GAVEL_JUDGE_KEY"
_ADDRESS = f"Give it, or set {URL_VARIABLE}: http://127.0.0.1:8080 is that of `gavel serve`."
_KEY = f"Give it as `gavel keys create` printed it (key=…, or {KEY_VARIABLE})."
_logger = logging.getLogger("gavel.client")
_PROBLEM = "urn:gavel:problem:"
_PASSING = {408, 425, 429, 500, 502, 503, 504}
_LASTING = {"judge-failed", "judge-stopped", "service-error", "wrong-keys"}
"""Kinds of problems that sending again does not mend, whatever their status."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 10.0
_LONGEST_REQUEST = 300.0
"""Seconds that one request is waited for; the next one goes on waiting for the same judgement."""
_CONNECT_SECONDS = 10.0
_HALF = re.compile("[\ud800-\udfff]")
_LIMITS = httpx.Limits(max_connections=None)
_of_parents: list[object] = []
"""Pools that a forked child has from its parent, kept so that nothing closes them here."""


class JudgeClient:
    """Asks one service. May be shared by tasks, threads and event loops; close it, or use it in `with` or `async with`.

    A pickled client has no key: where it is loaded, its key is that of the environment's GAVEL_JUDGE_KEY.
    """

    def __init__(
        self,
        url: str | None = None,
        key: str | None = None,
        *,
        project: str = "",
        deadline: float = 900.0,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        """`url` and `key`: None = the environment's GAVEL_JUDGE_URL and GAVEL_JUDGE_KEY. `project`: what judgements are
        filed under. `deadline`: seconds for one group, with all repetitions. `options`: what requests say, as
        `POST /v1/score` takes it (`rubric`, `preset`, `criteria`, `reference`, `judge`, `orders`, `mode`, `retain`); a
        task's own rubric, reference and criteria, in the group's metadata, win.

        Raises `JudgeError` when there is no address.
        """
        url = url or os.environ.get(URL_VARIABLE)
        if not url or not url.startswith(("http://", "https://")):
            raise JudgeError(
                f"{url!r} is no address of a judge service." if url else "no address of a judge service is given.",
                _ADDRESS,
            )
        try:
            address = httpx.URL(url)
            if not address.host:
                raise httpx.InvalidURL("it names no host")
        except httpx.InvalidURL as error:
            raise JudgeError(f"the address of the judge service cannot be read: {error}.", _ADDRESS) from error
        key = key or address.password or address.username
        self.url = str(address.copy_with(userinfo=b"")).rstrip("/")
        self.deadline = deadline
        self._options = {**(options or {}), **({"project": project} if project else {})}
        self._connect(key or os.environ.get(KEY_VARIABLE))

    def _connect(self, key: str | None) -> None:
        self._key = key = (key or "").strip() or None
        if key and not (key.isascii() and key.isprintable()):
            raise JudgeError("the key of the judge service has characters that no key has.", _KEY)
        self._connections = Connections(self.url, {"Authorization": f"Bearer {key}"} if key else {})

    def __getstate__(self) -> dict[str, Any]:
        return {"url": self.url, "deadline": self.deadline, "_options": self._options}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._connect(os.environ.get(KEY_VARIABLE))

    def __deepcopy__(self, _: dict[int, Any]) -> Self:
        return type(self)(self.url, self._key, deadline=self.deadline, options=copy.deepcopy(self._options))

    def __copy__(self) -> Self:
        return self.__deepcopy__({})

    async def score(self, group: TrajectoryGroup, *, idempotency_key: str | None = None) -> TrajectoryGroup:
        """A copy of the group with rewards and judgements; a pending group is run first.

        Raises `JudgeError` when the service refuses the group, its judge cannot be asked, or the deadline has passed.
        """
        if group.pending:
            await group
        exchange = self._exchange(group, idempotency_key)
        await self._answered(exchange)
        return _judged(group, exchange.answer)

    def score_now(self, group: TrajectoryGroup, *, idempotency_key: str | None = None) -> TrajectoryGroup:
        """The same as `score` for code without an event loop. The group must not be pending."""
        exchange = self._exchange(group, idempotency_key)
        connections = self._connections.of_threads()
        try:
            for attempt in Retrying(**exchange.policy):
                with attempt:
                    try:
                        response = connections.request(**exchange.request())
                    except httpx.TransportError as error:
                        raise Again.after(error) from error
                    exchange.read(response)
        except Again as error:
            raise exchange.too_late(error) from error
        return _judged(group, exchange.answer)

    async def score_member(
        self, trajectory: Trajectory, group: str, *, expected: int, id: str | None = None, **fields: Any
    ) -> "MemberScore":
        """The score of one member of a group whose members are sent one by one, from wherever they are.

        Answered once `expected` members have been sent to the `group` of this name, or when its time is over. `id`:
        name of the member; None = a new one. `fields`: further ones of `POST /v1/groups/{group}/members`, such as
        `reference`, `deadline_seconds` and `on_deadline`, which are the same for all members.

        Raises `JudgeError` as `score` does; when the service refuses the member it is a `RefusalError`, which says why.
        """
        member = {"expected": expected, "id": id or str(uuid.uuid4()), **_sent_form(trajectory)}
        path = f"/v1/groups/{quote(group, safe='')}/members"
        body = {**self._options, **truth_of(TrajectoryGroup([trajectory])).dump(), **fields, **member}
        exchange = Exchange(self.url, path, body, holds="score", deadline=self.deadline)
        await self._answered(exchange)
        return MemberScore.of(exchange.answer)

    def _exchange(self, group: TrajectoryGroup, idempotency_key: str | None) -> "Exchange":
        body = {"trajectories": [_sent_form(t) for t in group], **self._options, **truth_of(group).dump()}
        headers = {"Idempotency-Key": idempotency_key or str(uuid.uuid4())}
        return Exchange(self.url, "/v1/score", body, holds="members", deadline=self.deadline, headers=headers)

    async def _answered(self, exchange: "Exchange") -> None:
        """Sends requests until the exchange has its answer."""
        connections = self._connections.of_loop()
        try:
            async for attempt in AsyncRetrying(**exchange.policy):
                with attempt:
                    try:
                        response = await connections.request(**exchange.request())
                    except httpx.TransportError as error:
                        raise Again.after(error) from error
                    exchange.read(response)
        except Again as error:
            raise exchange.too_late(error) from error

    def close(self) -> None:
        """Closes the connections of `score_now`."""
        self._connections.close()

    async def aclose(self) -> None:
        """Closes all connections."""
        await self._connections.aclose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    @property
    def options(self) -> dict[str, Any]:
        """What its requests say of judging."""
        return dict(self._options)


_WHOLE = (
    "status",
    "reason",
    "calls",
    "cached_calls",
    "prompt_tokens",
    "completion_tokens",
    "cost_usd",
    "models",
    "warnings",
)


def _judged(group: TrajectoryGroup, answer: Mapping[str, Any]) -> TrajectoryGroup:
    """The group with what was answered. Raises `JudgeError` for a judgement that failed."""
    if answer["status"] == "failed":
        raise JudgeError(str(answer["members"][0]["reason"]), "Look at the service's log; then send it again.")
    members = [judgement_of(one) for one in answer["members"]]
    kept = {name: answer[name] for name in _WHOLE if name in answer}
    return with_judgements(group, members, GroupJudgement(**kept))


def _sent_form(trajectory: Trajectory) -> dict[str, Any]:
    """A member as `POST /v1/score` takes it."""
    form: dict[str, Any] = {"messages": trajectory.messages(), "status": trajectory.status}
    histories: Sequence[History] = trajectory.additional_histories
    optional = {
        "tools": trajectory.tools,
        "histories": [_history(history) for history in histories],
        "status_reason": trajectory.status_reason,
        "agent": trajectory.agent,
    }
    return form | {name: value for name, value in optional.items() if value}


def _history(history: History) -> dict[str, Any]:
    form: dict[str, Any] = {"messages": to_messages(history.messages_and_choices)}
    return form | {name: value for name, value in (("tools", history.tools), ("agent", history.agent)) if value}


@dataclass(frozen=True, slots=True)
class MemberScore:
    """A member's judgement, and what became of its group."""

    judgement: Judgement
    status: GroupStatus
    """That of the group: the same for all its members."""
    record: str
    """Id of the group's judgement at the service."""
    arrived: int
    """Members that were judged together; fewer than expected when the group's time was over."""

    @classmethod
    def of(cls, answer: Mapping[str, Any]) -> Self:
        """The answer of `/v1/groups/{group}/members`."""
        return cls(judgement_of(answer), answer["status"], answer["judgement"], answer["arrived"])


def judgement_of(answer: Mapping[str, Any]) -> Judgement:
    """The judgement in the answer about a member."""
    return Judgement(
        score=answer["score"],
        standard_error=answer["standard_error"],
        explanation=answer["explanation"],
        flags=answer["flags"],
        reason=answer["reason"],
    )


class RefusalError(JudgeError):
    """The service refuses a request, and will refuse it again."""

    def __init__(self, message: str, remedy: str, kind: str = "") -> None:
        super().__init__(message, remedy)
        self.kind = kind
        """Of its problem, such as "group-full"; empty where it names none."""


class Again(Exception):
    """The request may succeed when it is sent again, after `pause` seconds at least."""

    def __init__(self, why: str, pause: float = 0.0) -> None:
        super().__init__(why)
        self.pause = pause

    @classmethod
    def after(cls, error: httpx.TransportError) -> "Again":
        return cls(f"{type(error).__name__}: {error}" if str(error) else type(error).__name__)


class _NotYet(Again):
    """The group is accepted, and its judgement is waited for."""


class Exchange:
    """The requests for one answer."""

    def __init__(
        self,
        url: str,
        path: str,
        body: Mapping[str, Any],
        *,
        holds: str,
        deadline: float,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """`holds`: a field of the answer, by which it is known. `deadline`: seconds for it, with all repetitions.

        Raises `JudgeError` for a body that JSON cannot hold.
        """
        self._url = url
        sent = {"Content-Type": "application/json", **(headers or {})}
        self._first = {"method": "POST", "url": url + path, "content": _json(body), "headers": sent}
        self._holds = holds
        self._seconds = deadline
        self._deadline = time.monotonic() + deadline
        self._place: str | None = None
        self._told = False
        self.answer: dict[str, Any] = {}
        """Empty until `read` has taken one."""

    @property
    def policy(self) -> dict[str, Any]:
        """When a request is sent again, as tenacity takes it."""
        growing = wait_random_exponential(multiplier=_FIRST_PAUSE, max=_LONGEST_PAUSE)

        def pause(state: RetryCallState) -> float:
            error = state.outcome.exception() if state.outcome else None
            return max(growing(state), error.pause if isinstance(error, Again) else 0.0)

        def stop(state: RetryCallState) -> bool:
            return state.upcoming_sleep >= self._left

        def tell(state: RetryCallState) -> None:
            error = state.outcome.exception() if state.outcome else None
            if not self._told and not isinstance(error, _NotYet):
                self._told = True
                _logger.warning("%s: %s; it is asked again for %.0f s", self._url, error, self._left)

        tried = retry_if_exception_type(Again)
        return {"retry": tried, "wait": pause, "stop": stop, "before_sleep": tell, "reraise": True}

    @property
    def _left(self) -> float:
        return self._deadline - time.monotonic()

    def request(self) -> dict[str, Any]:
        """The next request: what is asked, or once it is accepted the question for its answer."""
        seconds = max(min(self._left, _LONGEST_REQUEST), 0.1)
        timeout = httpx.Timeout(seconds, connect=min(seconds, _CONNECT_SECONDS), pool=None)
        if self._place is None:
            return {**self._first, "timeout": timeout}
        url = httpx.URL(self._place).copy_merge_params({"wait": max(seconds - 1.0, 0.0)})
        return {"method": "GET", "url": url, "timeout": timeout}

    def read(self, response: httpx.Response) -> None:
        """Takes the answer. Raises `Again` when there is none yet, `RefusalError` when there will be none."""
        try:
            found: dict[str, Any] = response.json()
        except ValueError:
            found = {}
        if response.status_code == 200 and self._holds in found:
            self.answer = found
        elif response.status_code == 202:
            place = response.headers.get("location") or f"/v1/judgements/{found['id']}"
            self._place = self._url + place if place.startswith("/") else place
            raise _NotYet("the group is not judged yet")
        else:
            kind = str(found.get("type", "")).removeprefix(_PROBLEM)
            why = str(found.get("detail") or f"the service answered with status {response.status_code}")
            if response.status_code in _PASSING and kind not in _LASTING:
                pause = response.headers.get("retry-after", "")
                raise Again(why, float(pause) if pause.isdigit() else 0.0)
            raise RefusalError(why, str(found.get("remedy") or f"Is {self._url} a judge service?"), kind)

    def too_late(self, error: Again) -> JudgeError:
        return JudgeError(
            f"the group was not judged within {self._seconds:g} s: {error}.",
            f"Is the service at {self._url} running? Raise the client's deadline if its judge is slow.",
        )


def _json(body: Mapping[str, Any]) -> bytes:
    """The body as all read it: NaN and infinities as text, and U+FFFD for halves of a character."""
    try:
        return to_json(body, inf_nan_mode="strings")
    except PydanticSerializationError:  # for halves of a character, or for what JSON cannot hold
        pass
    try:
        text = json.dumps(to_jsonable_python(body), ensure_ascii=False)
    except PydanticSerializationError as error:
        raise JudgeError(
            f"the group cannot be sent: {error}.", "Messages and tools hold texts, numbers, lists and dicts alone."
        ) from error
    return to_json(json.loads(_HALF.sub("\ufffd", text)), inf_nan_mode="strings")


class Connections:
    """Pools of connections that send the same headers. May be shared by tasks, event loops, threads and processes."""

    def __init__(self, url: str, headers: Mapping[str, str]) -> None:
        """To the service at `url`: through the environment's proxy, unless it runs on this machine."""
        self._headers = dict(headers)
        self._trusts_env = not is_on_this_machine(url)
        self._begin()

    def _begin(self) -> None:
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._of_loops: WeakKeyDictionary[asyncio.AbstractEventLoop, httpx.AsyncClient] = WeakKeyDictionary()
        self._of_threads: httpx.Client | None = None

    def _check_process(self) -> None:
        if self._process != os.getpid():
            _of_parents.append((dict(self._of_loops), self._of_threads))
            self._begin()

    def of_loop(self) -> httpx.AsyncClient:
        """The pool of the running event loop."""
        self._check_process()
        loop = asyncio.get_running_loop()
        with self._lock:
            pool = self._of_loops.get(loop)
            if pool is None:
                pool = self._of_loops[loop] = httpx.AsyncClient(
                    headers=self._headers, limits=_LIMITS, trust_env=self._trusts_env
                )
            return pool

    def of_threads(self) -> httpx.Client:
        """The pool of code without an event loop, in any thread."""
        self._check_process()
        with self._lock:
            if self._of_threads is None:
                self._of_threads = httpx.Client(headers=self._headers, limits=_LIMITS, trust_env=self._trusts_env)
            return self._of_threads

    def close(self) -> None:
        """Closes those of code without an event loop."""
        self._check_process()
        with self._lock:
            pool, self._of_threads = self._of_threads, None
        if pool is not None:
            pool.close()

    async def aclose(self) -> None:
        """Closes those of the running event loop too, and those of loops that run in other threads."""
        self.close()
        with self._lock:
            pools = dict(self._of_loops)
            self._of_loops.clear()
        here = asyncio.get_running_loop()
        for loop, pool in pools.items():
            if loop is here:
                await pool.aclose()
            elif loop.is_running():
                asyncio.run_coroutine_threadsafe(pool.aclose(), loop)
