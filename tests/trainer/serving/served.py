"""The embedded policy behind a real endpoint, as model.register makes it, and chat replies."""

import asyncio
import threading
from collections.abc import Callable, Generator
from concurrent.futures import Future
from contextlib import closing, contextmanager
from typing import Any

from hypothesis import strategies as st
from openai import AsyncOpenAI, DefaultAioHttpClient

from gavel.scenarios.library.returns_desk import scenario
from gavel.trainer.embedded import EMBEDDED_POLICY
from gavel.trainer.engines.grammar import Grammars
from gavel.trainer.engines.protocol import Engine, Sampled, SamplingRequest
from gavel.trainer.engines.transformers import TransformersEngine
from gavel.trainer.policy.policy import Policy, load_base
from gavel.trainer.serving.openai_server import EndpointServer
from tests.limits import HANG_SECONDS

VERSION = 3
MAX_CONTEXT = 1024
TASK = scenario.tasks("train")[0]
SYSTEM = scenario.system
QUESTION = TASK.user
TOOLS = scenario.toolbox.schemas
OPENING: list[Any] = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": QUESTION}]


class Gate:
    """Keeps replies of the engine back while it is not open."""

    def __init__(self) -> None:
        self.asked, self.opened = 0, threading.Event()
        self.opened.set()

    def keep(self, engine: TransformersEngine) -> None:
        submit = engine.submit

        def submit_later(request: SamplingRequest) -> "Future[Sampled]":
            self.asked += 1
            if self.opened.is_set():
                return submit(request)
            held: Future[Sampled] = Future()

            def answer() -> None:
                self.opened.wait(HANG_SECONDS)
                if held.set_running_or_notify_cancel():
                    held.set_result(submit(request).result(HANG_SECONDS))

            threading.Thread(target=answer).start()
            return held

        engine.submit = submit_later


@contextmanager
def serving(policy: Policy, gate: Gate | None = None) -> Generator[EndpointServer]:
    base = load_base(EMBEDDED_POLICY, policy.dtype, policy.device)
    grammars = Grammars(policy.tokenizer, policy.vocabulary)
    engine = TransformersEngine(base, slots=16, max_context=MAX_CONTEXT, grammars=grammars)
    engine.publish(policy, VERSION)
    if gate is not None:
        gate.keep(engine)
    with endpoint_of(engine, policy) as server:
        yield server


@contextmanager
def endpoint_of(engine: Engine, policy: Policy, **settings: Any) -> Generator[EndpointServer]:
    with closing(engine), closing(EndpointServer(engine, policy, model="desk", **settings)) as server:
        yield server


def client_of(server: EndpointServer, api_key: str = "gavel") -> AsyncOpenAI:
    return AsyncOpenAI(
        base_url=server.base_url, api_key=api_key, max_retries=0, http_client=DefaultAioHttpClient(trust_env=False)
    )


async def tool_result(name: str, arguments: str) -> str:
    return (await scenario.toolbox.call(name, arguments, TASK)).content


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(HANG_SECONDS):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


USAGE = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
texts = st.text(max_size=12)


def replies(arguments: st.SearchStrategy[str] = texts) -> st.SearchStrategy[dict[str, Any]]:
    function = st.fixed_dictionaries({"name": texts, "arguments": arguments})
    call = st.fixed_dictionaries({"id": texts.filter(bool), "type": st.just("function"), "function": function})
    calls = st.lists(call, min_size=1, max_size=3)
    return st.fixed_dictionaries(
        {"role": st.just("assistant"), "content": texts},
        optional={"reasoning_content": texts.filter(bool), "tool_calls": calls},
    )


def completion_of(reply: dict[str, Any], finish_reason: str = "stop") -> dict[str, Any]:
    choice = {"index": 0, "finish_reason": finish_reason, "message": reply}
    return {"id": "chatcmpl-1", "created": 5, "model": "desk@3", "choices": [choice], "usage": USAGE}
