"""Turns that are streamed, sampled several times, or ended early: through OpenAI's own client."""

import asyncio
import math
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import replace

import pytest
from openai import APIError, APIStatusError, AsyncOpenAI, omit

from gavel.trainer.data.token_sequences import COMPACT, sequences, turn_of
from gavel.trainer.engines.protocol import EngineError, Sampled, SamplingRequest
from gavel.trainer.serving.openai_server import EndpointServer
from tests.limits import HANG_SECONDS
from tests.trainer.conftest import OPENING, TOOLS, attempt
from tests.trainer.serving.served import endpoint_of, until
from tests.trainer.serving.test_openai_server import Recited

pytestmark = pytest.mark.slow


class Paced(Recited):
    """Says its text token by token, as far as a test lets it."""

    def __init__(self, policy) -> None:
        super().__init__(policy)
        self.replies: list[Reply] = []

    def submit(self, request: SamplingRequest) -> "Future[Sampled]":
        self.replies.append(Reply(request, super().submit(request).result()))
        return self.replies[-1].future


class Reply:
    def __init__(self, request: SamplingRequest, whole: Sampled) -> None:
        self.request, self.whole, self.said = request, whole, 0
        self.future: Future[Sampled] = Future()

    def say(self, tokens: int) -> None:
        new = slice(self.said, self.said + tokens)
        piece = replace(self.whole, token_ids=self.whole.token_ids[new], logprobs=self.whole.logprobs[new])
        self.request.on_tokens(piece)
        self.said += tokens

    def end(self) -> None:
        if self.request.on_tokens is not None and self.said < len(self.whole.token_ids):
            self.say(len(self.whole.token_ids) - self.said)
        if not self.future.cancelled():
            self.future.set_result(self.whole)


@pytest.fixture
def paced(policy) -> Paced:
    return Paced(policy)


@pytest.fixture
def server(policy, paced) -> Iterator[EndpointServer]:
    with endpoint_of(paced, policy) as running:
        yield running


async def reply_of(paced: Paced, number: int = 0) -> Reply:
    await until(lambda: len(paced.replies) > number)
    return paced.replies[number]


async def create(client: AsyncOpenAI, messages=OPENING, **settings):
    settings = {"model": "desk", "tools": TOOLS} | settings
    return await client.chat.completions.create(messages=messages, **settings)


CALL = '<tool_call>\n{{"name": "look_up_order", "arguments": {{"order_id": "{}"}}}}\n</tool_call>'


async def test_text_goes_out_while_the_turn_is_still_sampled_and_a_client_that_goes_away_ends_it(client, paced):
    paced.text = "The lamp is on its way. It comes on Monday."
    stream = asyncio.create_task(create(client, stream=True))
    reply = await reply_of(paced)
    reply.say(10)
    chunks = aiter(await stream)
    shown = ""
    async with asyncio.timeout(HANG_SECONDS):
        while not shown:
            shown += (await anext(chunks)).choices[0].delta.content or ""
    assert paced.text.startswith(shown)
    assert not reply.future.done()
    reply.end()
    async for chunk in chunks:
        shown += chunk.choices[0].delta.content or ""
    assert shown == paced.text
    streaming = asyncio.create_task(create(client, stream=True))
    reply = await reply_of(paced, 1)
    reply.say(5)
    stream = await streaming
    await anext(aiter(stream))
    await stream.close()
    await until(reply.future.cancelled)


TEXTS = [
    "",
    "  Spaces around – Ünïcödé 漢字 🙂  \n",
    "a < b and [c] and {d} and `e`",
    "<think>\nNever ends",
    "First this.\n" + CALL.format(7890),
    "<think>\nHm.\n</think>\n\n" + CALL.format(1) + "\n" + CALL.format(2),
    'Broken.\n<tool_call>\n{"name": "refund", "arguments": {"order\n</tool_call>',
    '<tool_call>\n{"name": "refund", "argum',
    "STO STOP here",
]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("fields", [{}, {"stop": ["STOP"]}, {"extra_body": COMPACT}])
async def test_a_stream_adds_up_to_the_whole_turn(client, paced, text, fields):
    paced.text = text
    if not text.startswith("<tool_call>"):  # where none is offered, a call is text
        strict = [tool | {"function": tool["function"] | {"strict": True}} for tool in TOOLS]
        fields = {**fields, "tools": strict}  # the helper takes no others
    plain = asyncio.create_task(create(client, **{"tools": omit, **fields}))
    (await reply_of(paced)).end()
    expected = (await plain).choices[0]

    async def accumulated():
        async with client.chat.completions.stream(model="desk", messages=OPENING, **fields) as stream:
            return (await stream.get_final_completion()).choices[0]

    streaming = asyncio.create_task(accumulated())
    reply = await reply_of(paced, 1)
    for _ in reply.whole.token_ids:
        reply.say(1)
        await asyncio.sleep(0.001)
    reply.end()
    found = await streaming
    assert (found.message.content or "") == expected.message.content
    said = [(getattr(each.message, "reasoning_content", None) or "").lstrip() for each in (found, expected)]
    assert said[0] == said[1]
    calls, turns = [], []
    for each in (found, expected):
        calls.append([(call.function.name, call.function.arguments) for call in each.message.tool_calls or ()])
        turns.append((each.finish_reason, turn_of(each).token_ids, turn_of(each).logprobs))
    assert calls[0] == calls[1]
    assert turns[0] == turns[1]


async def test_what_fails_before_the_first_token_is_a_plain_error_and_later_one_in_the_stream(client, paced):
    with pytest.raises(APIStatusError, match="desk@7") as error:
        await create(client, model="desk@7", stream=True)
    assert error.value.status_code == 400
    paced.text, stopped = "Well, that is that.", EngineError("the engine stopped")
    streaming = asyncio.create_task(create(client, stream=True))
    (await reply_of(paced)).future.set_exception(stopped)
    with pytest.raises(APIStatusError, match="the engine stopped") as error:
        await streaming
    assert error.value.status_code == 503
    streaming = asyncio.create_task(create(client, stream=True))
    reply = await reply_of(paced, 1)
    reply.say(5)
    stream = await streaming
    reply.future.set_exception(stopped)
    with pytest.raises(APIError, match="the engine stopped"):
        _ = [chunk async for chunk in stream]
    paced.logprob = math.nan
    streaming = asyncio.create_task(create(client, stream=True, logprobs=False))
    (await reply_of(paced, 2)).future.set_result(paced.replies[2].whole)
    with pytest.raises(APIError, match="not a finite number"):
        _ = [chunk async for chunk in await streaming]


@pytest.mark.parametrize("streams", [False, True])
async def test_several_turns_are_sampled_with_different_seeds_and_each_can_go_on(client, paced, streams):
    paced.text = CALL.format(7890)
    asking = asyncio.create_task(create(client, n=3, seed=5, stream=streams))
    await reply_of(paced, 2)
    for number in (2, 0, 1):
        paced.replies[number].end()
    assert paced.replies[0].request.seed == 5
    assert len({reply.request.seed for reply in paced.replies}) == 3
    if streams:
        chunks = [chunk async for chunk in await asking]
        begun = [chunk.choices[0].index for chunk in chunks if chunk.choices[0].delta.role]
        assert begun == [0, 1, 2]
        choices = [chunk.choices[0] for chunk in chunks if chunk.choices[0].finish_reason]
        calls = [choice.delta.tool_calls[0] for choice in sorted(choices, key=lambda choice: choice.index)]
    else:
        completion = await asking
        assert completion.usage.completion_tokens == sum(len(choice.token_ids) for choice in completion.choices)
        calls = [choice.message.tool_calls[0] for choice in completion.choices]
    assert len({call.id for call in calls}) == 3
    for at, call in enumerate(calls):
        said = {"role": "assistant", "content": "", "tool_calls": [call.model_dump(exclude={"index"})]}
        messages = [*OPENING, said, {"role": "tool", "tool_call_id": call.id, "content": "found"}]
        after = asyncio.create_task(create(client, messages))
        (await reply_of(paced, 3 + at)).end()
        assert (await after).choices[0].continues_sampled


@pytest.mark.parametrize("stop", ["Observation:", ["nothing", "Observation:", "vation:"]])
async def test_a_turn_ends_at_the_first_stop_string_with_the_tokens_up_to_it(client, paced, policy, stop):
    paced.text = "I look.\nObservation: a lamp. Observation: two."
    asking = asyncio.create_task(create(client, stop=stop))
    reply = await reply_of(paced)
    reply.say(len(reply.whole.token_ids) - 1)
    choice = (await asking).choices[0]
    assert reply.future.cancelled()
    assert choice.message.content == "I look.\n"
    assert choice.finish_reason == "stop"
    assert choice.token_ids == reply.whole.token_ids[: len(choice.token_ids)]
    assert policy.decode(choice.token_ids).startswith("I look.\nObservation:")
    assert "Observation:" not in policy.decode(choice.token_ids[:-1])
    assert len(choice.logprobs.content) == len(choice.token_ids)
    messages = [*OPENING, choice.message.model_dump(), {"role": "tool", "tool_call_id": "none", "content": "lamp"}]
    after = asyncio.create_task(create(client, messages))
    (await reply_of(paced, 1)).end()
    found = (await after).choices[0]
    assert found.continues_sampled
    (sequence,) = sequences(attempt(choice, found))
    assert sequence.trained_tokens == len(choice.token_ids) + len(found.token_ids)
