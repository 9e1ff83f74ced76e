"""The embedded policy behind a real endpoint, as model.register makes it, for tests of the APIs and of captures."""

from collections.abc import Generator
from contextlib import contextmanager

from openai import AsyncOpenAI, DefaultAioHttpClient

from gavel.scenarios.library.returns_desk import scenario
from gavel.trainer.embedded import EMBEDDED_POLICY
from gavel.trainer.engines.transformers import TransformersEngine
from gavel.trainer.policy.policy import Policy, load_base
from gavel.trainer.serving.openai_server import EndpointServer

VERSION = 3
MAX_CONTEXT = 1024
TASK = scenario.tasks("train")[0]
SYSTEM = scenario.system
QUESTION = TASK.user
TOOLS = scenario.toolbox.schemas


@contextmanager
def serving(policy: Policy) -> Generator[EndpointServer]:
    base = load_base(EMBEDDED_POLICY, policy.dtype, policy.device)
    engine = TransformersEngine(base, slots=16, max_context=MAX_CONTEXT)
    engine.publish(policy, VERSION)
    server = EndpointServer(
        engine,
        policy.renderer,
        policy.decode,
        model="desk",
        max_context=MAX_CONTEXT,
        rendering_by=policy.rendering_by,
    )
    try:
        yield server
    finally:
        server.close()
        engine.close()


def client_of(server: EndpointServer, api_key: str = "gavel") -> AsyncOpenAI:
    """To be closed by `async with`."""
    return AsyncOpenAI(
        base_url=server.base_url, api_key=api_key, max_retries=0, http_client=DefaultAioHttpClient(trust_env=False)
    )


async def tool_result(name: str, arguments: str) -> str:
    return (await scenario.toolbox.call(name, arguments, TASK)).content
