"""The vLLM engine: requests over HTTP to a server that is started here or runs already.

Requests and replies are token ids, with log-probs. Every sampling option that would change the distribution is switched
off, and a server whose log-probs ignore the temperature is used at temperature 1 only. An adapter's name is never used
twice, so a request keeps the adapter that it began with. A reply that must fit a grammar is sampled freely first, and
kept if it fits: then it is the policy's own. Else vLLM samples it once more under the grammar.
"""

import asyncio
import contextlib
import json
import secrets
import shutil
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import httpx
import torch
from httpx_aiohttp import HttpxAiohttpClient

from gavel.base.network import is_on_this_machine
from gavel.trainer.engines.grammar import Constraint, Grammars, constraint_of
from gavel.trainer.engines.protocol import (
    SHORTEN,
    Adapter,
    AdapterGone,
    ContextOverflow,
    Engine,
    EngineError,
    OnTokens,
    Sampled,
    SamplingRequest,
    Shaping,
    check_length,
    closed_error,
    deadline,
    settle,
)

if TYPE_CHECKING:
    from gavel.trainer.engines.vllm_launch import ServerProcess

T = TypeVar("T")

NO_ADAPTERS = (
    "It must run with --enable-lora, a --max-lora-rank no smaller than the adapter's and "
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING=True, and see the run directory under the same path; for an adapter of experts "
    "(--lora-experts) with --enable-mixed-moe-lora-format, too."
)
TOO_OLD = "It must be a vLLM that knows return_token_ids, 0.10.2 or newer."
NO_SLEEP = "It must run with --enable-sleep-mode and VLLM_SERVER_DEV_MODE=1; or leave sleep off."
NOT_THERE = "Start it, or name the address of one that runs."
GO_ON = "Register the model again: it goes on from the last checkpoint."

_COMPLETIONS = "/v1/completions"
_UNSHAPED = {name: value for name, value in asdict(Shaping()).items() if name != "logit_bias"}
_PLAIN = {**_UNSHAPED, "ignore_eos": True, "logprobs": 0, "return_token_ids": True}
_SEEDS = 2**63
_IDLE_CONNECTION = 2.0
"""Seconds. vLLM closes an idle connection after 5, which would break a request sent at that moment."""
_PROBE = SamplingRequest([0], frozenset(), max_tokens=16, temperature=2.0, seed=0)
_BEYOND_ROUNDING = 0.1  # nats
_FAREWELL_SECONDS, _HEALTH_SECONDS = 10.0, 30.0
_HEALTH_CHECKS, _HEALTH_INTERVAL = 50, 0.1  # of a server that aborted a request, and seconds between two


class _Misfit(Exception):
    """A reply does not fit its grammar."""


@dataclass(slots=True, eq=False)
class _ServedAdapter:
    """An adapter that is loaded at the server; used by the engine's event loop only."""

    name: str
    version: int
    directory: Path
    users: int = 0
    """Requests in flight."""


def _sampled(choices: Sequence[Mapping[str, Any]], version: int) -> Sampled:
    """What the choices of one reply add up to, whatever ended it."""
    reasons: list[Any] = ["no finish_reason", *filter(None, (choice["finish_reason"] for choice in choices))]
    found = Sampled([], [], reasons[-1], version)
    for choice in choices:
        if choice["token_ids"]:
            found.token_ids.extend(choice["token_ids"])
            found.logprobs.extend(choice["logprobs"]["token_logprobs"])
    return found


def _error_message(response: httpx.Response) -> str:
    try:
        return response.json()["error"]["message"]
    except (ValueError, KeyError, TypeError):
        return response.text


class VllmEngine(Engine):
    """An `Engine` over vLLM's HTTP API. It does not serve the base, which is inexact while adapters are loaded, and its
    server took its share of memory when it started."""

    def __init__(
        self,
        url: str,
        base_model: str,
        adapters: Path,
        *,
        max_context: int,
        versions: int = 1,
        api_key: str | None = None,
        sleep: bool = False,
        process: "ServerProcess | None" = None,
        grammars: Grammars | None = None,
    ) -> None:
        """`adapters` is a directory for the engine alone that the server can read; adapters are passed through it.

        `versions`: adapters kept, including the live one; one that requests in flight use is kept until they end.
        With `sleep`, `release_memory` puts the server to sleep. `process`: the server's process if it was started here;
        it is closed with the engine. `grammars`: without them requests can have none. Raises `EngineError` when the
        server does not serve `base_model`.
        """
        self._url = url.rstrip("/").removesuffix("/v1")
        self._process = process
        self._sleep = sleep
        self._grammars = grammars
        self._max_context = max_context
        self._error: EngineError | None = None
        """Why the engine accepts no more requests; None while it does."""
        self._closing = False
        self._gate = threading.Lock()
        """Prevents enqueueing after close."""
        self._awake = asyncio.Event()
        self._awake.set()
        self._idle = asyncio.Event()
        self._versions = versions
        self._published: list[_ServedAdapter] = []
        """The live one last; the list is replaced, never modified, since other threads read it."""
        self._retired: list[_ServedAdapter] = []
        """Adapters that are no longer published, but still used by requests in flight."""
        self._scaled = True if process is not None else None
        """Whether log-probs are those of the sampling temperature: true for our own server, None: not known yet."""
        self._adapters = adapters.absolute()
        shutil.rmtree(self._adapters, ignore_errors=True)  # left by a killed process
        self._adapters.mkdir(parents=True)
        self._client = HttpxAiohttpClient(
            base_url=self._url,
            headers={"Authorization": f"Bearer {api_key}"} if api_key else None,
            timeout=None,  # `_within` sets a deadline for each call
            trust_env=not is_on_this_machine(self._url),
            limits=httpx.Limits(max_connections=0, keepalive_expiry=_IDLE_CONNECTION),  # 0: no limit
        )
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="gavel-vllm", daemon=True)
        self._thread.start()
        try:
            self._max_context = self._begin(self._served_context(base_model)).result()
        except BaseException:
            self.close()
            raise

    @property
    def adapter_versions(self) -> list[int]:
        return [adapter.version for adapter in self._published]

    @property
    def address(self) -> str:
        """The server's address."""
        return self._url

    def healthy(self) -> bool:
        """Whether the server answers its health check within 30 s."""
        try:
            return not self.closed and not self._begin(self._is_dead()).result()
        except EngineError:  # closed meanwhile
            return False

    @property
    def closed(self) -> bool:
        return self._error is not None or (self._process is not None and not self._process.running)

    @property
    def max_context(self) -> int:
        return self._max_context

    def submit(self, request: SamplingRequest) -> "Future[Sampled]":
        try:
            check_length(request, self._max_context)
            if request.temperature not in (0, 1) and not self._scaled:
                raise EngineError(
                    f"the server at {self._url} cannot tell log-probs at temperature {request.temperature:g}",
                    "Start it with --logprobs-mode processed_logprobs, or sample at temperature 1.",
                )
            constraint = constraint_of(request, self._grammars)
            return self._begin(self._sample(request, constraint), min(request.max_tokens, self._max_context))
        except EngineError as error:
            failed: Future[Sampled] = Future()
            settle(failed, error)
            return failed

    def publish(self, adapter: Adapter, version: int) -> None:
        if self._error is not None:
            raise self._error
        name = f"gavel@{version}-{secrets.token_hex(4)}"
        directory = self._adapters / name
        adapter.save_adapter(directory)
        self._begin(self._publish(_ServedAdapter(name, version, directory))).result()
        if self._scaled is None:
            self._scaled = self._begin(self._scales()).result()

    def score(self, token_ids: Sequence[int]) -> list[float]:
        return self._begin(self._score(token_ids)).result()

    @contextlib.contextmanager
    def release_memory(self) -> Iterator[None]:
        if not self._sleep:
            yield
            return
        self._begin(self._fall_asleep()).result()
        try:
            yield
        finally:
            if torch.cuda.is_available():
                torch.cuda.empty_cache()  # the server needs this memory to wake up
            self._begin(self._wake_up()).result()

    def close(self) -> None:
        with self._gate:
            if self._closing:
                return
            self._closing = True
            self._error = self._error or closed_error()
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        if self._process is not None:
            self._process.close()
        shutil.rmtree(self._adapters, ignore_errors=True)

    def _begin(self, work: Coroutine[Any, Any, T], max_tokens: int = 0) -> "Future[T]":
        """Starts `work` in the engine's event loop, with the deadline. Raises `EngineError` when closed."""
        with self._gate:
            if self._error is None:
                return asyncio.run_coroutine_threadsafe(self._within(deadline(max_tokens), work), self._loop)
        work.close()
        raise self._error

    async def _within(self, seconds: float, work: Coroutine[Any, Any, T]) -> T:
        try:
            async with asyncio.timeout(seconds):
                return await work
        except TimeoutError as error:
            raise EngineError(f"the server at {self._url} was not done after {seconds:.0f} s", GO_ON) from error
        except (KeyError, IndexError, TypeError, ValueError) as error:
            told = f"{type(error).__name__}: {error}"
            raise EngineError(f"the server at {self._url} does not answer as vLLM does ({told})", TOO_OLD) from error
        except asyncio.CancelledError:
            if self._closing:
                raise EngineError("the engine was closed with requests in flight") from None
            raise

    async def _end(self) -> None:
        for work in (pending := asyncio.all_tasks() - {asyncio.current_task()}):
            work.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
        if self._process is None:  # a server that keeps running should not keep our adapters
            with contextlib.suppress(EngineError, TimeoutError):
                async with asyncio.timeout(_FAREWELL_SECONDS):
                    for adapter in (*self._retired, *self._published):
                        await self._unload(adapter)
        await self._client.aclose()

    async def _served_context(self, base_model: str) -> int:
        """The smaller of the server's and our own maximum context, in tokens; raises when it serves another model."""
        served = (await self._call("GET", "/v1/models")).json()["data"]
        for each in served:
            if each.get("parent") is None and base_model in (each["id"], each.get("root")):
                return min(self._max_context, each.get("max_model_len") or self._max_context)
        raise EngineError(
            f"the server at {self._url} serves {', '.join(each['id'] for each in served)}, not {base_model}",
            "Start it with that base model, or name it so with --served-model-name.",
        )

    async def _scales(self) -> bool:
        """Whether log-probs are those of the sampling temperature: then those sampled at 2 differ from a score at 1."""
        sampled = await self._sample(_PROBE, None)
        scored = await self._score([*_PROBE.prompt_ids, *sampled.token_ids])
        gaps = [abs(one - other) for one, other in zip(sampled.logprobs, scored, strict=True)]
        return max(gaps) > _BEYOND_ROUNDING

    async def _sample(self, request: SamplingRequest, constraint: Constraint | None) -> Sampled:
        def must_fit(piece: Sampled) -> None:
            if constraint is not None and not all(map(constraint.take, piece.token_ids)):
                raise _Misfit

        room, redrawn = self._max_context - len(request.prompt_ids), False
        body: dict[str, Any] = {
            **_PLAIN,
            "prompt": list(request.prompt_ids),
            "max_tokens": min(request.max_tokens, room),
            "temperature": request.temperature,
            "seed": request.seed % _SEEDS,
            "stop_token_ids": sorted(request.stop_ids),
            **(request.shaping.asked() if request.shaping else {}),
        }
        async with self._turn(request.adapter_version) as adapter:
            try:
                hear = request.on_tokens if constraint is None else must_fit
                sampled = await self._complete(adapter, body, hear)
            except _Misfit:
                assert request.grammar is not None
                body["structured_outputs"] = {"json": json.loads(request.grammar.schema)}
                sampled, redrawn = await self._complete(adapter, body, request.on_tokens), True
        if sampled.finish_reason not in ("stop", "length"):
            if await self._dies_soon():
                raise self._lost(f"it ended a request early: {sampled.finish_reason}")
            raise EngineError(f"the server at {self._url} ended a request early ({sampled.finish_reason})", GO_ON)
        if redrawn:  # a grammar chose among its tokens
            return replace(sampled, redrawn=len(sampled.token_ids))
        if constraint is not None and request.on_tokens is not None:
            request.on_tokens(sampled)
        return sampled

    async def _score(self, token_ids: Sequence[int]) -> list[float]:
        asked = {"prompt": list(token_ids), "max_tokens": 1, "temperature": 0.0, "prompt_logprobs": 0}
        async with self._turn(None) as adapter:
            answer = await self._call("POST", _COMPLETIONS, _PLAIN | asked | {"model": adapter.name})
        entries = answer.json()["choices"][0]["prompt_logprobs"][1:]
        return [entry[str(token)]["logprob"] for entry, token in zip(entries, token_ids[1:], strict=True)]

    async def _complete(self, adapter: _ServedAdapter, body: dict[str, Any], on_tokens: OnTokens | None) -> Sampled:
        """A reply, of which `on_tokens` hears the tokens as they come; whatever ended it."""
        body = body | {"model": adapter.name}
        if on_tokens is None:
            answer = await self._call("POST", _COMPLETIONS, body)
            return _sampled(answer.json()["choices"][:1], adapter.version)
        choices: list[dict[str, Any]] = []
        try:
            async with self._client.stream("POST", _COMPLETIONS, json=body | {"stream": True}) as response:
                if not response.is_success:
                    await response.aread()
                    raise await self._refused(response, _COMPLETIONS)
                async for line in response.aiter_lines():
                    if not line.startswith("data:") or line == "data: [DONE]":
                        continue
                    event = json.loads(line.removeprefix("data:"))
                    if "error" in event:
                        raise EngineError(f"the server ended a stream early: {event['error']['message']}")
                    for choice in event["choices"]:
                        choices.append(choice)
                        if choice["token_ids"]:
                            on_tokens(_sampled([choice], adapter.version))
        except httpx.HTTPError as error:
            raise self._lost(f"{type(error).__name__} {error}") from error
        return _sampled(choices, adapter.version)

    @contextlib.asynccontextmanager
    async def _turn(self, version: int | None) -> AsyncIterator[_ServedAdapter]:
        """The adapter of a version (None: the live one), kept loaded until the exit; waits while the server sleeps."""
        await self._awake.wait()
        if not self._published:
            raise EngineError("no adapter has been published yet")
        adapter = next((each for each in reversed(self._published) if version in (None, each.version)), None)
        if adapter is None:
            raise AdapterGone(version or 0, self.adapter_versions)
        adapter.users += 1
        try:
            yield adapter
        finally:
            adapter.users -= 1
            self._idle.set()

    async def _publish(self, new: _ServedAdapter) -> None:
        await self._awake.wait()
        body: dict[str, Any] = {"lora_name": new.name, "lora_path": str(new.directory)}
        config = json.loads((new.directory / "adapter_config.json").read_text(encoding="utf-8"))
        if config.get("target_parameters"):  # experts, which PEFT stacks
            body["is_3d_lora_weight"] = True
        await self._call("POST", "/v1/load_lora_adapter", body, NO_ADAPTERS)
        earlier = self._published
        self._published = [*(each for each in earlier if each.version != new.version), new][-self._versions :]
        retired = [*self._retired, *(each for each in earlier if each not in self._published)]
        self._retired = [adapter for adapter in retired if adapter.users]
        for adapter in retired:
            if not adapter.users:
                await self._unload(adapter)

    async def _unload(self, adapter: _ServedAdapter) -> None:
        await self._call("POST", "/v1/unload_lora_adapter", {"lora_name": adapter.name})
        shutil.rmtree(adapter.directory, ignore_errors=True)

    async def _fall_asleep(self) -> None:
        self._awake.clear()
        try:
            while any(adapter.users for adapter in (*self._retired, *self._published)):
                self._idle.clear()
                await self._idle.wait()
            await self._call("POST", "/sleep?level=1", None, NO_SLEEP)
        except BaseException:
            self._awake.set()
            raise

    async def _wake_up(self) -> None:
        try:
            await self._call("POST", "/wake_up", None, NO_SLEEP)
        finally:
            self._awake.set()

    async def _call(self, method: str, path: str, body: Any = None, remedy: str = "") -> httpx.Response:
        """The server's answer.

        Raises `EngineError` with `remedy` when the server refuses, and for good when it is gone or dying;
        `ContextOverflow` when the prompt is too long.
        """
        try:
            response = await self._client.request(method, path, json=body)
        except httpx.HTTPError as error:
            raise self._lost(f"{type(error).__name__} {error}") from error
        if response.is_success:
            return response
        raise await self._refused(response, path, remedy)

    async def _refused(self, response: httpx.Response, path: str, remedy: str = "") -> EngineError:
        told = f"{path} answered {response.status_code}: {_error_message(response)}"
        if response.is_server_error and await self._is_dead():
            return self._lost(told)
        if "maximum context length" in response.text:
            return ContextOverflow(_error_message(response), SHORTEN)
        return EngineError(f"{self._url}{told}", remedy)

    async def _is_dead(self) -> bool:
        """Whether the server fails its health check, as vLLM does between its engine's death and its own."""
        try:
            return (await self._client.get("/health", timeout=_HEALTH_SECONDS)).is_server_error
        except httpx.HTTPError:
            return True

    async def _dies_soon(self) -> bool:
        """Whether the server fails one of `_HEALTH_CHECKS` health checks: one that stops aborts its requests first."""
        for _ in range(_HEALTH_CHECKS):
            if await self._is_dead():
                return True
            await asyncio.sleep(_HEALTH_INTERVAL)
        return False

    def _lost(self, reason: str) -> EngineError:
        """Closes the engine to new work, and gives the error that says why."""
        told = f" {self._process.log_tail()}" if self._process else ""
        lost = EngineError(
            f"the server at {self._url} is gone ({reason}).{told}", GO_ON if self._published else NOT_THERE
        )
        self._error = self._error or lost
        return lost
