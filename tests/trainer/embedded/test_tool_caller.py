"""The tool caller's material: worlds that can be solved by reading, and a chat format that Gavel renders and reads."""

import asyncio
from functools import cache
from pathlib import Path
from typing import Any

import gavel
from benchmarks.own_scenario import calls_of, turns_of
from benchmarks.tool_caller import TEMPLATE as CHAT_TEMPLATE
from benchmarks.tool_caller import make_tokenizer, tokens_of
from benchmarks.tool_worlds import Worlds
from examples.returns import ORDERS, returns
from gavel.trainer.embedded import TOOL_CALLER, embedded_path
from gavel.trainer.policy.chat_format import TEMPLATE, chat_renderer
from tests.trainer.conftest import a_model, registered


@cache
def tokenizer() -> Any:
    return make_tokenizer(0)


def test_the_trained_tokens_are_those_that_gavel_takes_for_sampled() -> None:
    renderer: Any = chat_renderer(tokenizer(), "qwen3", TEMPLATE, "a model", {})
    worlds = Worlds(seed=11)
    for episode in (worlds.draw() for _ in range(200)):
        ids, said = tokens_of(episode, tokenizer())
        rendered = renderer.render(episode.messages, tools=episode.tools)
        assert rendered.token_ids == ids.tolist()
        assert rendered.sampled_mask == said.tolist()


def test_a_tool_is_described_in_one_line_behind_the_system_prompt() -> None:
    shapes = {"a": {"type": "integer", "description": "the\nnumber"}, "b": {"enum": ["x", "y"]}}
    function = {"name": "f", "description": "Do  it.", "parameters": {"properties": shapes, "required": ["a"]}}
    messages = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi."}]
    text = tokenizer().apply_chat_template(messages, tools=[{"function": function}], tokenize=False)
    told = 'f(a:integer,b?:"x"|"y"): Do it. a: the\nnumber'
    assert text == f"<|system|>Be kind.\n{told}<|end|><|user|>Hi.<|end|>"
    assert (embedded_path(TOOL_CALLER) / "chat_template.jinja").read_text() == CHAT_TEMPLATE, "the shipped one"


async def test_the_shipped_base_calls_the_tools_of_a_job_that_it_has_never_seen(tmp_path: Path) -> None:
    async with registered(tmp_path, a_model(base_model=TOOL_CALLER)) as (model, _):
        tasks = returns.sample("held_out", 16, seed=0)
        played = await asyncio.gather(
            *(gavel.rollout(model, returns, task, max_tokens=48, seed=at) for at, task in enumerate(tasks))
        )
    kinds = [kind for each in played for kind in turns_of(each)]
    assert kinds.count("invalid") < len(kinds) / 10
    looked = [call for each in played for call in calls_of(each)[:1] if call[0] == "look_up_order"]
    assert len(looked) > len(played) / 4
    assert all(arguments["order_id"] in ORDERS for _, arguments in looked)
