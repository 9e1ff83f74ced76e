"""The Python client of the service: scores groups as a `Judge` does, over HTTP.

    client = gavel.JudgeClient("http://127.0.0.1:8080")
    judged = await client.score(group)                 # a new group with rewards and judgements, as of Judge.score
    judged = client.score_now(group)                   # the same without an event loop

A request that fails on the way, or meets a service that is busy or restarting, is sent again with the same idempotency
key until the deadline, so a group is judged once however often it is sent. Importing this loads no model library.
"""

import copy
import os
import uuid
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

import httpx
from tenacity import AsyncRetrying, Retrying

from gavel.judge.service.connections import Connections
from gavel.judge.service.exchange import Again, Exchange
from gavel.judge.service.member_score import MemberScore, judgement_of
from gavel.scenarios.errors import JudgeError
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.judged_copy import with_judgements
from gavel.scenarios.judgement import GroupJudgement
from gavel.scenarios.trajectory import History, Trajectory, to_messages
from gavel.scenarios.truth import truth_of

URL_VARIABLE = "GAVEL_JUDGE_URL"
KEY_VARIABLE = "GAVEL_JUDGE_KEY"
_ADDRESS = f"Give it, or set {URL_VARIABLE}: http://127.0.0.1:8080 is that of `gavel serve`."
_KEY = f"Give it as `gavel keys create` printed it (key=…, or {KEY_VARIABLE})."


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
    ) -> MemberScore:
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

    def _exchange(self, group: TrajectoryGroup, idempotency_key: str | None) -> Exchange:
        body = {"trajectories": [_sent_form(t) for t in group], **self._options, **truth_of(group).dump()}
        headers = {"Idempotency-Key": idempotency_key or str(uuid.uuid4())}
        return Exchange(self.url, "/v1/score", body, holds="members", deadline=self.deadline, headers=headers)

    async def _answered(self, exchange: Exchange) -> None:
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
