"""The Python client of the service: scores groups as a `Judge` does, over HTTP.

    client = gavel.JudgeClient("http://127.0.0.1:8080")
    judged = await client.score(group)                 # a new group with rewards and judgements, as of Judge.score
    judged = client.score_now(group)                   # the same without an event loop

A request that is lost, or finds the service busy or restarting, is retried with the same idempotency key until the
deadline, so a group is judged once however often it is sent. Importing this loads no model library.
"""

import asyncio
import copy
import json
import logging
import os
import random
import re
import time
import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Self, cast
from urllib.parse import quote
from weakref import WeakKeyDictionary

import httpx
from pydantic_core import PydanticSerializationError, to_json, to_jsonable_python

from gavel.base.network import is_on_this_machine, server_address
from gavel.scenarios.errors import JudgeError
from gavel.scenarios.group import TrajectoryGroup, with_judgements
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
"""Kinds of problems that a retry does not solve, whatever their status."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 10.0
_LONGEST_REQUEST = 300.0
"""Max seconds of one request; the next one continues to wait for the same judgement."""
_CONNECT_SECONDS = 10.0
_HALF = re.compile("[\ud800-\udfff]")
_NOT_YET = "the group is not judged yet"


class JudgeClient:
    """A client of one service. May be shared by tasks, threads and event loops; `async with` closes the connections of
    its event loop.

    A pickled client contains no key: after loading, its key is the environment's GAVEL_JUDGE_KEY.
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
        `POST /v1/score` takes it (`rubric`, `preset`, `criteria`, `reference`, `judge`, `orders`, `mode`); a
        task's own rubric, reference and criteria, in the group's metadata, win.

        Raises `JudgeError` when there is no address.
        """
        if not (url := url or os.environ.get(URL_VARIABLE)):
            raise JudgeError("no address of a judge service is given.", _ADDRESS)
        try:
            address = httpx.URL(url)
            self.url = server_address(str(address.copy_with(userinfo=b"")))
        except (httpx.InvalidURL, ValueError) as error:
            raise JudgeError(f"the address of the judge service cannot be read: {error}.", _ADDRESS) from error
        key = key or address.password or address.username
        self.deadline = deadline
        self._options = {**(options or {}), **({"project": project} if project else {})}
        self._connect(key or os.environ.get(KEY_VARIABLE))

    def _connect(self, key: str | None) -> None:
        self._key = key = (key or "").strip() or None
        if key and not (key.isascii() and key.isprintable()):
            raise JudgeError("the key of the judge service has characters that no key has.", _KEY)
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._pools: WeakKeyDictionary[asyncio.AbstractEventLoop, httpx.AsyncClient] = WeakKeyDictionary()

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
        """Returns a copy of the group with rewards and judgements; a pending group is run first.

        Raises `JudgeError` when the service refuses the group, its judge cannot be asked, or the deadline has passed.
        """
        if group.pending:
            await group
        body = {"trajectories": [_sent_form(t) for t in group], **self._options, **truth_of(group).dump()}
        headers = {"Idempotency-Key": idempotency_key or str(uuid.uuid4())}
        return _judged(group, await self._answer("/v1/score", body, "members", headers))

    def score_now(self, group: TrajectoryGroup, *, idempotency_key: str | None = None) -> TrajectoryGroup:
        """The same as `score` for synchronous code and notebooks. The group must not be pending."""

        async def once() -> TrajectoryGroup:
            try:
                return await self.score(group, idempotency_key=idempotency_key)
            finally:
                await self.aclose()

        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run(once())
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(asyncio.run, once()).result()

    async def score_member(
        self, trajectory: Trajectory, group: str, *, expected: int, id: str | None = None, **fields: Any
    ) -> "MemberScore":
        """The score of one member of a group whose members are sent separately, from any process.

        Answered once `expected` members have been sent to the `group` of this name, or when its time is over. `id`:
        name of the member; None = a new one. `fields`: further ones of `POST /v1/groups/{group}/members`, such as
        `reference`, `deadline_seconds` and `on_deadline`, which are the same for all members.

        Raises `JudgeError` as `score` does; when the service refuses the member it is a `RefusalError`, which says why.
        """
        member = {"expected": expected, "id": id or str(uuid.uuid4()), **_sent_form(trajectory)}
        path = f"/v1/groups/{quote(group, safe='')}/members"
        body = {**self._options, **truth_of(TrajectoryGroup([trajectory])).dump(), **fields, **member}
        return MemberScore.of(await self._answer(path, body, "score", {}))

    async def _answer(
        self, path: str, body: Mapping[str, Any], holds: str, headers: Mapping[str, str]
    ) -> dict[str, Any]:
        """The service's response to the body, recognized by the field that it `holds`.

        The request is retried while that may help; once it is accepted, its result is polled.
        """
        pool = self._pool()
        content, sent = _encode(body), {"Content-Type": "application/json", **headers}
        deadline, longest, place, is_told = time.monotonic() + self.deadline, _FIRST_PAUSE, "", False
        while True:
            left = max(deadline - time.monotonic(), 0.1)
            seconds = min(left, _LONGEST_REQUEST)
            timeout = httpx.Timeout(seconds, connect=min(seconds, _CONNECT_SECONDS), pool=None)
            pause = random.uniform(0, longest)
            longest = min(2 * longest, _LONGEST_PAUSE)
            try:
                if place:
                    url = httpx.URL(place).copy_merge_params({"wait": max(seconds - 1.0, 0.0)})
                    response = await pool.get(url, timeout=timeout)
                else:
                    response = await pool.post(self.url + path, content=content, headers=sent, timeout=timeout)
            except httpx.TransportError as error:
                why = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
                wait = 0.0
            else:
                found = _object_in(response)
                if response.status_code == 200 and holds in found:
                    return found
                if response.status_code == 202:
                    why, wait = _NOT_YET, 0.0
                    place = response.headers.get("location") or f"/v1/judgements/{found['id']}"
                    place = self.url + place if place.startswith("/") else place
                else:
                    why, wait = self._refusal(response, found)
            pause, left = max(pause, wait), deadline - time.monotonic()
            if pause >= left:
                raise JudgeError(
                    f"the group was not judged within {self.deadline:g} s: {why}.",
                    f"Is the service at {self.url} running? Raise the client's deadline if its judge is slow.",
                )
            if why != _NOT_YET and not is_told:
                is_told = True
                _logger.warning("%s: %s; it is asked again for %.0f s", self.url, why, left)
            await asyncio.sleep(pause)

    def _refusal(self, response: httpx.Response, found: Mapping[str, Any]) -> tuple[str, float]:
        kind = str(found.get("type", "")).removeprefix(_PROBLEM)
        why = str(found.get("detail") or f"the service answered with status {response.status_code}")
        if response.status_code in _PASSING and kind not in _LASTING:
            pause = response.headers.get("retry-after", "")
            return why, float(pause) if pause.isdigit() else 0.0
        raise RefusalError(why, str(found.get("remedy") or f"Is {self.url} a judge service?"), kind)

    def _pool(self) -> httpx.AsyncClient:
        """The running event loop's connections, through the environment's proxy unless to this machine."""
        loop = asyncio.get_running_loop()
        if loop not in self._pools:
            limits, trusts_env = httpx.Limits(max_connections=None), not is_on_this_machine(self.url)
            self._pools[loop] = httpx.AsyncClient(headers=self._headers, limits=limits, trust_env=trusts_env)
        return self._pools[loop]

    async def aclose(self) -> None:
        """Closes the connections of the running event loop."""
        if pool := self._pools.pop(asyncio.get_running_loop(), None):
            await pool.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


def _judged(group: TrajectoryGroup, answer: Mapping[str, Any]) -> TrajectoryGroup:
    """The group with its judgement. Raises `JudgeError` for a judgement that failed."""
    if answer["status"] == "failed":
        raise JudgeError(str(answer["members"][0]["reason"]), "Look at the service's log; then send it again.")
    members = [Judgement.model_validate(member) for member in answer["members"]]
    return with_judgements(group, members, GroupJudgement.model_validate(answer))


def _sent_form(trajectory: Trajectory) -> dict[str, Any]:
    """A member in the form of `POST /v1/score`."""
    form: dict[str, Any] = {name: getattr(trajectory, name) for name in ("tools", "status", "status_reason", "agent")}
    histories: Sequence[History] = trajectory.additional_histories
    form["histories"] = [
        {"messages": to_messages(one.messages_and_choices), "tools": one.tools, "agent": one.agent} for one in histories
    ]
    return {"messages": trajectory.messages(), **{name: value for name, value in form.items() if value}}


@dataclass(frozen=True, slots=True)
class MemberScore:
    """A member's judgement, and the state of its group."""

    judgement: Judgement
    status: GroupStatus
    """Status of the group, the same for all its members."""
    record: str
    """Id of the group's judgement at the service."""
    arrived: int
    """Members that were judged together; fewer than expected if the deadline passed."""

    @classmethod
    def of(cls, answer: Mapping[str, Any]) -> Self:
        """Parses the response of `/v1/groups/{group}/members`."""
        return cls(Judgement.model_validate(answer), answer["status"], answer["judgement"], answer["arrived"])


class RefusalError(JudgeError):
    """The service rejects a request, and will reject it again."""

    def __init__(self, message: str, remedy: str, kind: str = "") -> None:
        super().__init__(message, remedy)
        self.kind = kind
        """Kind of the problem, such as "group-full"; empty if it names none."""


def _object_in(response: httpx.Response) -> dict[str, Any]:
    try:
        found = response.json()
    except ValueError:
        return {}
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}


def _encode(body: Mapping[str, Any]) -> bytes:
    """The body as portable JSON: NaN and infinities as text, and U+FFFD for unpaired surrogates."""
    try:
        return to_json(body, inf_nan_mode="strings")
    except PydanticSerializationError:  # for unpaired surrogates, or values that JSON cannot hold
        pass
    try:
        text = json.dumps(to_jsonable_python(body), ensure_ascii=False)
    except PydanticSerializationError as error:
        raise JudgeError(
            f"the group cannot be sent: {error}.", "Messages and tools hold texts, numbers, lists and dicts alone."
        ) from error
    return to_json(json.loads(_HALF.sub("\ufffd", text)), inf_nan_mode="strings")
