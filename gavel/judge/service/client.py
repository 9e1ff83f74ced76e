"""The Python client of the service: scores groups as a `Judge` does, over HTTP.

    client = gavel.JudgeClient("http://127.0.0.1:8080")
    judged = await client.score(group)                 # a new group with rewards and judgements, as of Judge.score
    judged = client.score_now(group)                   # the same without an event loop

A request that fails on the way, or meets a service that is busy or restarting, is sent again with the same idempotency
key until the deadline, so a group is judged once however often it is sent. Importing this loads no model library.
"""

import os
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import httpx
from tenacity import AsyncRetrying, RetryCallState, Retrying, retry_if_exception_type, wait_random_exponential

from gavel.scenarios.errors import JudgeError
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.judged_copy import with_judgements
from gavel.scenarios.judgement import GroupJudgement, Judgement
from gavel.scenarios.trajectory import History, Trajectory, to_messages
from gavel.scenarios.truth import truth_of

URL_VARIABLE = "GAVEL_JUDGE_URL"
KEY_VARIABLE = "GAVEL_JUDGE_KEY"
_PROBLEM = "urn:gavel:problem:"
_PASSING = {408, 425, 429, 500, 502, 503, 504}
_LASTING = {"judge-failed", "judge-stopped", "service-error"}
"""Kinds of problems that sending again does not mend, whatever their status."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 10.0
_LONGEST_REQUEST = 300.0
"""Seconds that one request is waited for; the next one goes on waiting for the same judgement."""
_CONNECT_SECONDS = 10.0


class _Again(Exception):
    """The request may succeed when it is sent again, after `pause` seconds at least."""

    def __init__(self, why: str, pause: float = 0.0) -> None:
        super().__init__(why)
        self.pause = pause


class JudgeClient:
    """Asks one service. May be shared by tasks and threads; close it, or use it in `with` or `async with`."""

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
                f"Give it, or set {URL_VARIABLE}: http://127.0.0.1:8080 is that of `gavel serve`.",
            )
        key = key or os.environ.get(KEY_VARIABLE)
        self.url = url.rstrip("/")
        self.deadline = deadline
        self._options = {**(options or {}), **({"project": project} if project else {})}
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._async: httpx.AsyncClient | None = None
        self._sync: httpx.Client | None = None

    async def score(self, group: TrajectoryGroup, *, idempotency_key: str | None = None) -> TrajectoryGroup:
        """A copy of the group with rewards and judgements; a pending group is run first.

        Raises `JudgeError` when the service refuses the group, its judge cannot be asked, or the deadline has passed.
        """
        if group.pending:
            await group
        exchange = _Exchange(self, group, idempotency_key)
        if self._async is None:
            self._async = httpx.AsyncClient(headers=self._headers, limits=httpx.Limits(max_connections=None))
        client = self._async

        async def send() -> httpx.Response:
            return await client.request(**exchange.request())

        try:
            async for attempt in AsyncRetrying(**exchange.policy):
                with attempt:
                    exchange.read(await _sent(send))
        except _Again as error:
            raise exchange.too_late(error) from error
        return exchange.judged()

    def score_now(self, group: TrajectoryGroup, *, idempotency_key: str | None = None) -> TrajectoryGroup:
        """The same as `score` for code without an event loop. The group must not be pending."""
        exchange = _Exchange(self, group, idempotency_key)
        if self._sync is None:
            self._sync = httpx.Client(headers=self._headers, limits=httpx.Limits(max_connections=None))
        try:
            for attempt in Retrying(**exchange.policy):
                with attempt:
                    try:
                        response = self._sync.request(**exchange.request())
                    except httpx.TransportError as error:
                        raise _Again(_why(error)) from error
                    exchange.read(response)
        except _Again as error:
            raise exchange.too_late(error) from error
        return exchange.judged()

    def close(self) -> None:
        """Closes the connections of `score_now`."""
        if self._sync is not None:
            self._sync.close()
            self._sync = None

    async def aclose(self) -> None:
        """Closes all connections."""
        self.close()
        if self._async is not None:
            await self._async.aclose()
            self._async = None

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


class _Exchange:
    """The requests for one group, until there is an answer."""

    def __init__(self, client: JudgeClient, group: TrajectoryGroup, idempotency_key: str | None) -> None:
        self._client = client
        self._group = group
        self._key = idempotency_key or str(uuid.uuid4())
        self._body = {"trajectories": [_sent_form(t) for t in group], **client.options, **truth_of(group).dump()}
        self._deadline = time.monotonic() + client.deadline
        self._place: str | None = None
        self._answer: dict[str, Any] = {}

    @property
    def policy(self) -> dict[str, Any]:
        """When a request is sent again."""
        growing = wait_random_exponential(multiplier=_FIRST_PAUSE, max=_LONGEST_PAUSE)

        def pause(state: RetryCallState) -> float:
            error = state.outcome.exception() if state.outcome else None
            return max(growing(state), error.pause if isinstance(error, _Again) else 0.0)

        def stop(state: RetryCallState) -> bool:
            return state.upcoming_sleep >= self._left

        return {"retry": retry_if_exception_type(_Again), "wait": pause, "stop": stop, "reraise": True}

    @property
    def _left(self) -> float:
        return self._deadline - time.monotonic()

    def request(self) -> dict[str, Any]:
        """The next request: the group, or once it is accepted the question for its judgement."""
        seconds = max(min(self._left, _LONGEST_REQUEST), 0.1)
        timeout = httpx.Timeout(seconds, connect=min(seconds, _CONNECT_SECONDS), pool=None)
        if self._place is not None:
            params = {"wait": max(seconds - 1.0, 0.0)}
            return {"method": "GET", "url": self._client.url + self._place, "params": params, "timeout": timeout}
        headers = {"Idempotency-Key": self._key}
        url = f"{self._client.url}/v1/score"
        return {"method": "POST", "url": url, "json": self._body, "headers": headers, "timeout": timeout}

    def read(self, response: httpx.Response) -> None:
        """Takes the answer. Raises `_Again` when there is none yet, `JudgeError` when there will be none."""
        try:
            found: dict[str, Any] = response.json()
        except ValueError:
            found = {}
        if response.status_code == 200 and "members" in found:
            self._answer = found
        elif response.status_code == 202:
            self._place = f"/v1/judgements/{found['id']}"
            raise _Again("the group is not judged yet")
        else:
            kind = str(found.get("type", "")).removeprefix(_PROBLEM)
            why = str(found.get("detail") or f"the service answered with status {response.status_code}")
            if response.status_code in _PASSING and kind not in _LASTING:
                pause = response.headers.get("retry-after", "")
                raise _Again(why, float(pause) if pause.isdigit() else 0.0)
            raise JudgeError(why, str(found.get("remedy") or f"Is {self._client.url} a judge service?"))

    def judged(self) -> TrajectoryGroup:
        """The group with what was answered."""
        answer = self._answer
        if answer["status"] == "failed":
            raise JudgeError(str(answer["members"][0]["reason"]), "Look at the service's log; then send it again.")
        members = [
            Judgement(
                score=one["score"],
                standard_error=one["standard_error"],
                explanation=one["explanation"],
                flags=one["flags"],
                reason=one["reason"],
            )
            for one in answer["members"]
        ]
        kept = {name: answer[name] for name in _WHOLE if name in answer}
        return with_judgements(self._group, members, GroupJudgement(**kept))

    def too_late(self, error: _Again) -> JudgeError:
        return JudgeError(
            f"the group was not judged within {self._client.deadline:g} s: {error}.",
            f"Is the service at {self._client.url} running? Raise the client's deadline if its judge is slow.",
        )


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


async def _sent(send: Callable[[], Awaitable[httpx.Response]]) -> httpx.Response:
    try:
        return await send()
    except httpx.TransportError as error:
        raise _Again(_why(error)) from error


def _why(error: httpx.TransportError) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _sent_form(trajectory: Trajectory) -> dict[str, Any]:
    """A member as `POST /v1/score` takes it."""
    form: dict[str, Any] = {"messages": trajectory.messages(), "status": trajectory.status}
    histories: Sequence[History] = trajectory.additional_histories
    optional = {
        "tools": trajectory.tools,
        "histories": [_history(history) for history in histories],
        "status_reason": trajectory.status_reason,
    }
    return form | {name: value for name, value in optional.items() if value}


def _history(history: History) -> dict[str, Any]:
    form: dict[str, Any] = {"messages": to_messages(history.messages_and_choices)}
    return form | ({"tools": history.tools} if history.tools else {})
