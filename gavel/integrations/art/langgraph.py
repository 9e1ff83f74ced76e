"""Rollouts with LangGraph: `wrap_rollout(model, fn)`, and `init_chat_model()` inside it.

    from gavel.integrations.art.langgraph import init_chat_model, wrap_rollout

    rollout = wrap_rollout(model, run_agent)           run_agent makes its agent from init_chat_model()
    trajectory = await rollout(model, scenario)        the returned trajectory, with all turns and their token ids

The agent's requests are recorded at its client, so every turn keeps its token ids; the agent's other conversations
become additional histories.
"""

import importlib
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from functools import wraps
from typing import Any, ParamSpec

from gavel.integrations.art.auto_trajectory import recording
from gavel.integrations.art.errors import add_aliases
from gavel.integrations.art.model import Model
from gavel.integrations.art.trajectories import Trajectory

add_aliases(__name__, "llm_wrapper")

Parameters = ParamSpec("Parameters")
_model: ContextVar[Model[Any]] = ContextVar("langgraph_model")


def wrap_rollout(
    model: Model[Any], fn: Callable[Parameters, Awaitable[Trajectory]]
) -> Callable[Parameters, Awaitable[Trajectory]]:
    """Wraps `fn`, whose trajectory gets its agent's conversations. Raises `RuntimeError` if there were none."""

    @wraps(fn)
    async def wrapped(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Trajectory:
        token = _model.set(model)
        try:
            with recording(Trajectory()) as recorded:
                trajectory = await fn(*args, **kwargs)
        finally:
            _model.reset(token)
        if not recorded.messages_and_choices:
            raise RuntimeError(
                "the agent asked no chat model in this rollout: make its model in the rollout, with init_chat_model()"
            )
        trajectory.messages_and_choices, trajectory.tools = recorded.messages_and_choices, recorded.tools
        trajectory.additional_histories += recorded.additional_histories
        return trajectory

    return wrapped


def init_chat_model(model: str | None = None, *, temperature: float = 1.0, **options: Any) -> Any:
    """LangChain's chat model that reaches the wrapped rollout's model; `options` go to `ChatOpenAI`.

    Raises `RuntimeError` outside of a wrapped rollout, and `ImportError` without langchain-openai.
    """
    if (wrapped := _model.get(None)) is None:
        raise RuntimeError("init_chat_model() works inside a rollout of wrap_rollout(model, fn) only")
    try:
        chat_model: Any = importlib.import_module("langchain_openai").ChatOpenAI
    except ImportError as error:
        raise ImportError("art.langgraph needs langchain-openai: pip install langchain-openai langgraph") from error

    for name in ("model_provider", "configurable_fields", "config_prefix"):
        options.pop(name, None)
    return chat_model(
        model=wrapped.get_inference_name(),
        base_url=wrapped.inference_base_url,
        api_key=wrapped.inference_api_key,
        temperature=temperature,
        **options,
    )
