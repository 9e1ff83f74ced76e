import asyncio
import json
import threading

import pytest

import gavel.judge.panel.polling
from gavel.judge.errors import ContextTooSmallError
from gavel.judge.judge import Judge
from gavel.judge.panel.juror import Juror
from gavel.judge.prompt import call_prompt
from gavel.judge.prompt.fenced_transcript import read_transcripts
from gavel.judge.prompt.truncate import count_tokens
from tests.endpoint import fails, scores
from tests.judge.groups import saying
from tests.limits import HANG_SECONDS


class Reads:
    """A judge that scores by what a member says first, and remembers what it was shown."""

    def __init__(self) -> None:
        self.prompts: list[str] = []
        self.shown: list[int] = []

    async def __call__(self, messages, schema):
        self.prompts.append("".join(message["content"] for message in messages))
        attempts = read_transcripts(messages[1]["content"])
        self.shown.append(len(attempts))
        said = {label: attempt[0].events[-1].text for label, attempt in attempts.items()}
        scores = [
            {"trajectory_id": label, "explanation": "", "score": float(t.split()[0])} for label, t in said.items()
        ]
        return json.dumps({"scores": scores})


def long_group(members: int, words: int):
    return saying(*(f"{n / 100} says {'word ' * (words + n)}" for n in range(members)))


@pytest.mark.parametrize("context", [2_000, 4_000, 16_000])
async def test_no_prompt_is_longer_than_the_context_less_the_reply(context):
    reads = Reads()
    judged = await Judge(Juror(reads, context=context), orders=2).score(long_group(8, 3_000))
    assert judged.judgement.status == "scored"
    reply = min(1000 + 200 * min(reads.shown), context // 2)
    assert max(map(count_tokens, reads.prompts)) <= (context - reply) / 1.2
    assert "were shortened to fit" in judged.judgement.warnings[0]


async def test_every_member_is_shortened_alike_and_ranks_as_before():
    reads = Reads()
    judged = await Judge(Juror(reads, context=8_000), orders=2).score(long_group(6, 3_000))
    assert [t.reward for t in judged] == sorted(t.reward for t in judged)
    lengths = {len(attempt[0].events[-1].text.split()) for attempt in read_transcripts(reads.prompts[0]).values()}
    assert max(lengths) - min(lengths) <= 1


async def test_a_group_without_room_for_all_is_shown_in_smaller_blocks():
    reads = Reads()
    judged = await Judge(Juror(reads, context=2_600), orders=4).score(long_group(9, 400))
    assert judged.judgement.status == "scored"
    assert max(reads.shown) < 9
    assert [t.reward for t in judged] == sorted(t.reward for t in judged)


async def test_a_context_too_small_for_two_members_is_an_error_that_says_so():
    reads = Reads()
    with pytest.raises(ContextTooSmallError, match="room for a prompt of"):
        await Judge(Juror(reads, context=400)).score(long_group(3, 50))
    assert reads.prompts == []


async def test_a_juror_without_room_abstains():
    short, long = Reads(), Reads()
    judged = await Judge([Juror(short, context=400), Juror(long)]).score(long_group(3, 50))
    assert short.prompts == []
    assert judged.judgement.status == "scored"
    assert "room for a prompt of" in judged.judgement.warnings[0]


def refuses_above(limit: int, words: str):
    """A server whose context is `limit` tokens, and which says so in these words or not at all."""

    def step(request):
        if sum(count_tokens(message["content"]) for message in request["messages"]) > limit:
            return fails(400, words)(request)
        return scores(0.2, 0.4, 0.6)(request)

    return step


async def test_a_fallback_with_more_room_answers_for_a_model_without(endpoint, monkeypatch):
    endpoint.script = [scores(0.2, 0.4, 0.6)]
    rooms = {"openai/small": 400, "openai/large": 100_000}
    monkeypatch.setattr("gavel.llm.client.model_info", lambda model: {"max_input_tokens": rooms[model]})
    judged = await Judge(Juror(list(rooms), params=endpoint.params), orders=2).score(long_group(3, 50))
    assert judged.judgement.status == "scored"
    assert {vote.model for t in judged for vote in t.judgement.votes} == {"openai/large"}


@pytest.mark.parametrize("words", ["maximum context length is 6000 tokens", "the prompt is too long"])
async def test_a_server_that_has_less_room_than_was_thought_is_asked_again_with_less(endpoint, words):
    endpoint.script = [refuses_above(6000, words)]
    judge = Judge(Juror("openai/of-unknown-context", params=endpoint.params), orders=2)
    judged = await judge.score(long_group(3, 6_000))
    assert judged.judgement.status == "scored"
    assert judged.judgement.calls == 2, "what was refused is no call that was answered"
    refused = len(endpoint.requests)
    again = await judge.score(long_group(3, 5_000))
    assert again.judgement.status == "scored"
    assert len(endpoint.requests) == refused + 2, "what the server has room for is remembered"


async def test_texts_that_fit_are_shown_whole_without_a_warning():
    reads = Reads()
    judged = await Judge(Juror(reads)).score(long_group(3, 500))
    assert "tokens left out" not in reads.prompts[0]
    assert judged.judgement.warnings == []


async def test_other_tasks_run_while_a_prompt_is_made_to_fit(monkeypatch):
    others_run = threading.Event()

    def fit_after_others(*arguments):
        assert others_run.wait(HANG_SECONDS)
        return call_prompt.fit_messages(*arguments)

    monkeypatch.setattr(gavel.judge.panel.polling, "fit_messages", fit_after_others)
    async with asyncio.TaskGroup() as tasks:
        judging = tasks.create_task(Judge(Juror(Reads(), context=4_000)).score(long_group(3, 20_000)))
        await asyncio.sleep(0)
        tasks.create_task(asyncio.to_thread(others_run.set))
    assert judging.result().judgement.status == "scored"
