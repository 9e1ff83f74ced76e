"""The endpoint over the embedded policy, through OpenAI's own client; replies that a grammar holds to a schema."""

import json
from concurrent.futures import Future
from typing import Any

import httpx
import pytest
import torch
from openai import AsyncOpenAI, BadRequestError

from gavel.trainer.data.token_sequences import Turn, turn_of
from gavel.trainer.engines.protocol import Sampled, SamplingRequest
from gavel.trainer.engines.transformers import TransformersEngine
from gavel.trainer.policy.policy import Policy, load_base
from tests.trainer.conftest import full_logprobs
from tests.trainer.serving.served import MAX_CONTEXT, OPENING, TOOLS, VERSION, client_of, endpoint_of

pytestmark = pytest.mark.slow
STRICT = [{"type": "function", "function": tool["function"] | {"strict": True}} for tool in TOOLS]


class Recited:
    def __init__(self, policy: Policy) -> None:
        self._policy, self.text, self.logprob = policy, "", -0.1
        self.requests: list[SamplingRequest] = []
        self.adapter_version, self.adapter_versions, self.serves_base = 0, [0], False
        self.max_context = MAX_CONTEXT

    def submit(self, request: SamplingRequest) -> "Future[Sampled]":
        self.requests.append(request)
        ids = [*self._policy.tokenizer.encode(self.text, add_special_tokens=False), min(request.stop_ids)]
        future: Future[Sampled] = Future()
        future.set_result(Sampled(ids, [self.logprob] * len(ids), "stop", self.adapter_version))
        return future

    def close(self) -> None: ...


async def ask(client: AsyncOpenAI, messages=OPENING, **settings):
    settings = {"model": "desk", "tools": TOOLS, "temperature": 0} | settings
    return (await client.chat.completions.create(messages=messages, **settings)).choices[0]


async def test_a_reply_is_a_completion_with_all_that_exact_training_needs(client, policy):
    asked = {"messages": OPENING, "tools": TOOLS, "temperature": 0.7, "seed": 4}
    completion = await client.chat.completions.create(model="desk", **asked)
    (choice,) = completion.choices
    expected = policy.renderer.render_ids(OPENING, tools=TOOLS, add_generation_prompt=True)
    assert choice.prompt_token_ids == completion.prompt_token_ids == list(expected)
    assert (choice.policy_version, choice.temperature) == (VERSION, 0.7)
    assert completion.model == f"desk@{VERSION}"
    assert [len(choice.logprobs.content)] == [len(choice.token_ids)] == [completion.usage.completion_tokens]
    assert completion.usage.prompt_tokens == len(choice.prompt_token_ids)
    assert "".join(entry.token for entry in choice.logprobs.content) == policy.tokenizer.decode(choice.token_ids)


THINKING, PLAIN = ({"chat_template_kwargs": {"enable_thinking": value}} for value in (True, False))


async def test_arguments_of_the_template_render_that_turn_and_the_conversation_goes_on_with_them(client, policy):
    own, thinking, plain = [await ask(client, extra_body=body, max_tokens=4) for body in ({}, THINKING, PLAIN)]
    assert own.prompt_token_ids == thinking.prompt_token_ids
    rendering = policy.rendering_by({"enable_thinking": False})
    expected = rendering.render_ids(OPENING, tools=TOOLS, add_generation_prompt=True)
    assert plain.prompt_token_ids == expected != own.prompt_token_ids
    for first, body, other in ((plain, PLAIN, {}), (own, {}, PLAIN)):
        result = {"role": "tool", "tool_call_id": "c1", "content": "found"}
        longer = [*OPENING, first.message.model_dump(exclude_none=True), result]
        again = await ask(client, longer, extra_body=body, max_tokens=4)
        sampled = first.prompt_token_ids + first.token_ids
        assert again.continues_sampled
        assert again.prompt_token_ids[: len(sampled)] == sampled
        switched = await ask(client, longer, extra_body=other, max_tokens=4)
        assert switched.prompt_token_ids[: len(sampled)] != sampled, "another prompt, and so rendered anew"


@pytest.mark.parametrize("settings", [{"tools": None}, {"tool_choice": "none"}])
async def test_a_call_is_text_where_none_may_be_made(policy, settings):
    recited: Any = Recited(policy)
    recited.text = '<tool_call>\n{"name": "refund", "arguments": {}}\n</tool_call>'
    with endpoint_of(recited, policy) as server:
        async with client_of(server) as client:
            choice = await ask(client, **settings)
            messages = [*OPENING, choice.message.model_dump(), {"role": "user", "content": "And?"}]
            after = await ask(client, messages, **settings)
    assert (choice.finish_reason, choice.message.tool_calls) == ("stop", None)
    assert '"refund"' in choice.message.content
    assert after.continues_sampled


@pytest.mark.parametrize(
    ("method", "path", "content", "status", "told"),
    [
        ("POST", "chat/completions", "ab " * 1_000_000, 400, "3,000,041 characters"),
        ("POST", "chat/completions", "\ud800", 400, "half a surrogate pair"),
        ("POST", "embeddings", "", 404, "POST /v1/chat/completions"),
        ("GET", "chat/completions", "", 405, "POST /v1/chat/completions"),
    ],
    ids=["long", "surrogate", "embeddings", "GET"],
)
async def test_what_no_tokenizer_takes_or_is_not_served_is_refused(server, method, path, content, status, told):
    body = json.dumps({"model": "desk", "messages": [{"role": "user", "content": content}]})
    async with httpx.AsyncClient(trust_env=False) as plain:
        response = await plain.request(method, f"{server.base_url}/{path}", content=body)
    assert (response.status_code, told in response.json()["error"]["message"]) == (status, True)


@pytest.mark.parametrize(("limit", "asked", "given"), [(None, None, None), (20, None, 20), (20, 30, 30)])
async def test_a_reply_takes_the_rest_of_the_context_or_what_was_said(policy, limit, asked, given):
    recited: Any = Recited(policy)
    with endpoint_of(recited, policy, max_reply=limit) as server:
        async with client_of(server) as client:
            choice = await ask(client, **({"max_tokens": asked} if asked else {}))
            (model, *_) = (await client.models.list()).data
    assert recited.requests[0].max_tokens == (given or MAX_CONTEXT - len(choice.prompt_token_ids))
    assert model.max_model_len == MAX_CONTEXT


def assert_policy_s_own(turn: Turn, base: torch.nn.Module) -> None:
    """Its log-probs, in what it was shown."""
    expected = full_logprobs(base, turn.prompt_ids + turn.token_ids)[len(turn.prompt_ids) - 1 :]
    assert turn.logprobs == pytest.approx(expected.tolist(), abs=1e-4)


@pytest.mark.parametrize(
    ("choice", "streams"), [("required", True), ({"type": "function", "function": {"name": "refund"}}, False)]
)
async def test_a_policy_that_does_not_call_is_asked_again_behind_the_opening(client, embedded_base, choice, streams):
    unrelated = [{"role": "user", "content": "Thanks, bye."}]
    asked = {"tool_choice": choice, "max_tokens": 48}
    if streams:
        asked |= {"model": "desk", "tools": STRICT, "temperature": 0}
        async with client.chat.completions.stream(messages=unrelated, **asked) as stream:
            found = (await stream.get_final_completion()).choices[0]
    else:
        found = await ask(client, unrelated, **asked)
    turn = turn_of(found)
    assert_policy_s_own(turn, embedded_base)
    if found.message.tool_calls:
        name = found.message.tool_calls[0].function.name
        assert choice == "required" or name == "refund"
        said = found.message.model_dump(exclude={"parsed"})
        answer = {"role": "tool", "tool_call_id": found.message.tool_calls[0].id, "content": "{}"}
        after = await ask(client, [*unrelated, said, answer], tools=STRICT if streams else TOOLS, max_tokens=4)
        before = turn.prompt_ids + turn.token_ids
        assert after.prompt_token_ids[: len(before)] == before


async def test_the_base_models_own_name_is_the_base_without_an_adapter(policy, embedded_base):
    name = "embedded/returns-desk"
    engine = TransformersEngine(load_base(name, policy.dtype, policy.device), max_context=256)
    engine.publish(policy, VERSION)
    with endpoint_of(engine, policy, base_model=name) as server:
        async with client_of(server) as client:
            assert (await client.models.retrieve(name)).id == name
            short: Any = [{"role": "user", "content": "hi"}]
            completion = await client.chat.completions.create(model=name, messages=short, max_tokens=4)
    assert_policy_s_own(turn_of(completion.choices[0]), embedded_base)
    assert completion.model == name
    assert (completion.choices[0].model_extra or {})["shaped_by"] == ["model"]


def of_schema(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "decision", "schema": schema, "strict": True}}


async def test_beside_tools_a_reply_may_call_one_which_stays_the_policys_own(client):
    plain = await ask(client, max_tokens=120)
    under = await ask(client, max_tokens=120, response_format=of_schema({"enum": ["refund", "refuse"]}))
    assert plain.message.tool_calls
    assert under.token_ids == plain.token_ids
    given, own = ([token.logprob for token in each.logprobs.content] for each in (under, plain))
    assert given == pytest.approx(own, abs=1e-4)
    assert "shaped_by" not in under.model_extra


@pytest.mark.parametrize(
    ("asked", "code", "said"),
    [
        *(
            ({"extra_body": {"chat_template_kwargs": arguments}}, "invalid_request", said)
            for arguments, said in [
                ({"enable_thought": True}, "enable_thinking"),
                ({"chat_template": "{{ 1 }}"}, "enable_thinking"),
                ({"enable_thinking": "perhaps"}, "enable_thinking"),
                (False, "Leave it out"),
            ]
        ),
        ({"response_format": of_schema({"type": "objct"}), "stream": True}, "invalid_json_schema", "no grammar"),
        ({"response_format": of_schema({"$ref": "#/nowhere"})}, "invalid_json_schema", "no grammar"),
    ],
)
async def test_what_no_template_reads_or_no_grammar_keeps_is_a_400_that_says_what(client, asked, code, said):
    with pytest.raises(BadRequestError, match=said) as error:
        await ask(client, **asked)
    assert error.value.code == code
