"""Plays a scenario with a trainer's served policy, scores the groups, and sends them to its Atropos server.

    wait for room -> rollouts of one task -> reward -> exact tokens -> POST /scored_data

Room is the size of a batch minus the groups that wait or are being produced, so the groups are about as new as the
policy. A group is sent complete or not at all: a member that cannot be trained on exactly is
counted, with the reason.
"""

import asyncio
import gzip
import json
import math
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Self
from urllib.parse import urlsplit

import httpx
from pydantic import TypeAdapter, ValidationError
from tenacity import (
    AsyncRetrying,
    RetryCallState,
    retry_if_exception_type,
    stop_after_delay,
    wait_random_exponential,
)

from gavel.base.errors import GavelError
from gavel.base.network import is_on_this_machine
from gavel.integrations.atropos.group import AtroposGroup, atropos_group
from gavel.integrations.atropos.queue import EnvRegistration
from gavel.judge.judge import Judge
from gavel.scenarios.chat_model import ChatModel
from gavel.scenarios.gather import GroupTally
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.scenario import Scenario
from gavel.scenarios.seeds import seed_of
from gavel.trainer.config import LoopConfig
from gavel.trainer.loop.group_maker import GroupMaker, check_rewards, needed_judge
from gavel.trainer.loop.watchdog import Watchdog

_PACKED_FROM = 1024
"""Min bytes of a body that is sent with gzip."""
_REQUEST_SECONDS = 60.0
_OBJECT = TypeAdapter(dict[str, Any])


class AtroposServerError(GavelError):
    """An Atropos server cannot be reached, or rejects a request."""


class _Again(Exception):
    """The request may succeed if retried."""


class AtroposClient:
    """One environment at one server, as an async context manager."""

    def __init__(
        self,
        url: str,
        *,
        key: str | None = None,
        patience: float = 120.0,
        on_wait: Callable[[str], None] = lambda reason: None,
    ) -> None:
        """`patience`: seconds without a response after which the server is abandoned; `on_wait` is called once per
        retried request, with the reason. Raises `AtroposServerError`."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise AtroposServerError(f"{url!r} is no address of a server", "Give it as http://127.0.0.1:8000 (--url).")
        self.url = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path.rstrip('/')}"
        self._patience = patience
        self._on_wait = on_wait
        self._http = httpx.AsyncClient(
            base_url=url.rstrip("/"),
            headers={} if key is None else {"Authorization": f"Bearer {key}"},
            timeout=_REQUEST_SECONDS,
            trust_env=not is_on_this_machine(url),
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self._http.aclose()

    async def register(self, registration: EnvRegistration) -> dict[str, Any]:
        """Waits until the server's trainer has started. Returns `env_id`, `starting_step`, `num_steps` and more."""
        return await self._ask("POST", "/register-env", registration.model_dump())

    async def info(self) -> dict[str, Any]:
        """`batch_size` and `max_token_len`; -1 if no trainer has registered."""
        return await self._ask("GET", "/info")

    async def status(self, env_id: int) -> dict[str, Any]:
        """`current_step`, `queue_size` in groups of this environment, and more."""
        return await self._ask("GET", "/status-env", {"env_id": env_id})

    async def send(self, group: AtroposGroup) -> None:
        """Sends a group until it is acknowledged. `gavel serve-atropos` stores a resent group once."""
        await self._ask("POST", "/scored_data", group.model_dump(mode="json"))

    async def disconnect(self, env_id: int) -> None:
        await self._ask("POST", "/disconnect-env", {"env_id": env_id})

    async def _ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """The answer to a request, retried while it raises `_Again` and patience lasts."""
        started = time.monotonic()

        def tell_wait(state: RetryCallState) -> None:
            if state.attempt_number == 1 and state.outcome is not None:
                self._on_wait(str(state.outcome.exception()))

        retrying = AsyncRetrying(
            retry=retry_if_exception_type(_Again),
            wait=wait_random_exponential(multiplier=0.1, max=2.0),
            stop=stop_after_delay(self._patience),
            before_sleep=tell_wait,
            reraise=True,
        )
        try:
            return await retrying(self._ask_once, method, path, body)
        except _Again as reason:
            raise AtroposServerError(
                f"{self.url} gave no answer for {time.monotonic() - started:.0f} s: {reason}",
                "Look whether it runs and its trainer has started; `gavel serve-atropos` starts one.",
            ) from reason

    async def _ask_once(self, method: str, path: str, body: dict[str, Any] | None) -> dict[str, Any]:
        content, headers = b"" if body is None else json.dumps(body).encode(), {"Content-Type": "application/json"}
        if len(content) >= _PACKED_FROM:
            content, headers["Content-Encoding"] = gzip.compress(content, 1), "gzip"
        try:
            answer = await self._http.request(method, path, content=content, headers=headers)
        except httpx.TransportError as error:
            raise _Again(f"{type(error).__name__}: {error}") from error
        if answer.status_code >= 500:
            raise _Again(f"{answer.status_code}: {answer.text:.200}")
        try:
            found = _OBJECT.validate_json(answer.content)
        except ValidationError as error:
            if answer.is_success:
                told = f"{self.url} answers what no server of Atropos' API does: {answer.text:.80}"
                raise AtroposServerError(told, "Give the address of the API (--url).") from error
            found = {}
        if not answer.is_success:
            why = f"{found['detail']!s:.500}" if "detail" in found else f"{answer.text:.200}"
            raise AtroposServerError(f"{self.url}{path} refused it with {answer.status_code}: {why}")
        if path == "/register-env" and found.get("status") != "success":
            raise _Again(f"it says: {found.get('status')}")
        return found


EXACT: dict[str, Any] = {"logprobs": True, "return_token_ids": True}
"""Request fields that make vLLM, and Gavel's endpoint, return a turn's tokens."""
_POLL_SECONDS = 0.25
_DRY_GROUPS = 4
"""Number of unsendable groups after which a sender that has sent none stops."""
_EQUAL = "its members all have the same score"


class SendError(GavelError):
    """No produced group can be sent."""


@dataclass(slots=True)
class Sent:
    """Totals of a sender."""

    groups: int = 0
    left_out: Counter[str] = field(default_factory=Counter[str])
    """Dropped groups, by reason."""


@dataclass(eq=False)
class AtroposSender:
    """One scenario as an environment of Atropos."""

    client: AtroposClient
    model: ChatModel
    scenario: Scenario
    loop: LoopConfig
    """Its reward, sampling, sizes and seed count."""
    judge: Judge | None = None
    groups: int | None = None
    """Groups to send; None: until the trainer has taken its last step."""
    fields: dict[str, Any] | None = None
    """Added to each request to the policy; by default `EXACT`."""
    on_group: Callable[[TrajectoryGroup, str | None], None] = lambda group, left_out: None
    """Called for each group, with the reason if it was not sent."""

    def __post_init__(self) -> None:
        """Raises `LoopError` if the reward needs a missing judge, or a function that the scenario lacks."""
        loop, scenario = self.loop, self.scenario
        check_rewards(scenario, loop.reward)
        judge = needed_judge(loop.reward, self.judge)
        self._maker = GroupMaker(
            self.model,
            {scenario.name: judge} if judge else {},
            loop,
            Watchdog(math.inf),
            fields=EXACT if self.fields is None else self.fields,
        )
        self._limiter = asyncio.Semaphore(loop.concurrency)
        self._sent = Sent()
        self._env_id = -1

    async def run(self) -> Sent:
        """Sends until there are enough groups or the trainer is done. Raises `AtroposServerError`, `SendError`."""
        registered = await self.client.register(
            EnvRegistration(
                max_token_length=self.scenario.max_tokens or 2048,
                desired_name=self.scenario.name,
                group_size=self.loop.group_size,
            )
        )
        self._env_id = int(registered["env_id"])
        last_step = int(registered.get("num_steps", -1))
        running: set[asyncio.Task[None]] = set()
        numbers = count()
        try:
            while True:
                wanted = math.inf if self.groups is None else self.groups - self._sent.groups - len(running)
                status, info = await self.client.status(self._env_id), await self.client.info()
                a_batch = max(1, int(info["batch_size"]) // self.loop.group_size)  # groups of this environment
                is_done = 0 <= last_step < int(status["current_step"]) + int(status["queue_size"]) // a_batch
                if is_done or (wanted <= 0 and not running):
                    break
                room = a_batch - int(status["queue_size"]) - len(running)
                while room > 0 and wanted > 0:
                    running.add(asyncio.create_task(self._make(next(numbers))))
                    room, wanted = room - 1, wanted - 1
                if running:
                    done, running = await asyncio.wait(
                        running, timeout=_POLL_SECONDS, return_when=asyncio.FIRST_COMPLETED
                    )
                    for task in done:
                        task.result()
                    self._check_progress()
                else:
                    await asyncio.sleep(_POLL_SECONDS)
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
        await self.client.disconnect(self._env_id)
        return self._sent

    async def _make(self, number: int) -> None:
        """Plays one task, and sends its group, or one group per agent."""
        seed = self.loop.seed
        (task,) = self.scenario.sample("train", 1, seed=seed, step=number)
        groups = await self._maker.make(
            self.scenario,
            task,
            seeds=lambda index: seed_of(seed, "atropos", number, task.id, index),
            limiter=self._limiter,
            tally=GroupTally(),
        )
        for group in groups:
            problem = await self._send(group)
            if problem is not None:
                self._sent.left_out[problem] += 1
            self.on_group(group, problem)

    async def _send(self, group: TrajectoryGroup) -> str | None:
        """Sends a group; returns the reason if it was not sent."""
        if group.exceptions:
            return f"{group.exceptions[0].type}: {group.exceptions[0].message}"
        if failed := next((each for each in group if each.status == "failed"), None):
            return f"a rollout failed: {failed.status_reason}"
        made, left_out = atropos_group(group, temperature=self.loop.temperature)
        if made is None or left_out:
            return next(iter(left_out), "it has no members")
        if len(set(made.scores)) == 1:
            return _EQUAL
        made.env_id = self._env_id
        await self.client.send(made)
        self._sent.groups += 1
        return None

    def _check_progress(self) -> None:
        """Raises `SendError` if several groups were produced and none can be sent."""
        unfit = Counter({reason: number for reason, number in self._sent.left_out.items() if reason != _EQUAL})
        if not self._sent.groups and unfit.total() >= _DRY_GROUPS:
            raise SendError(
                f"none of {unfit.total()} groups could be sent; most often: {unfit.most_common(1)[0][0]}",
                "A policy that is trained exactly tells its tokens: serve it by Gavel or vLLM. `gavel check` plays two "
                "episodes of the scenario.",
            )
