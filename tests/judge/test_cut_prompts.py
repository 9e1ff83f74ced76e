"""Servers that read only a part of the prompt: what the judge says then is no verdict."""

import json
import re
from collections.abc import Iterator

import pytest

from gavel.judge.judge import Judge
from gavel.judge.panel.juror import Juror
from tests.endpoint import labels_in, says
from tests.judge.groups import saying
from tests.llm.ollama import Ollama


def verdict(text: str) -> str:
    """Scores for all members that the request at the end of the prompt names."""
    labels = re.findall(r"trajectories: ([\w, ]+)\.", text)[-1].split(", ")
    return json.dumps({"scores": [{"trajectory_id": n, "explanation": "", "score": 0.5} for n in labels]})


@pytest.fixture
def ollama(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ollama]:
    server = Ollama(verdict)
    monkeypatch.setenv("OLLAMA_API_BASE", server.url)
    yield server
    server.close()


def group_of(words: int):
    return saying(*(f"{n} " + "a word or two more " * (words // 5) for n in range(4)))


async def test_ollama_is_told_how_long_the_prompt_is(ollama):
    judged = await Judge(Juror("ollama_chat/judge", context=32_768), orders=2).score(group_of(2_500))
    assert judged.judgement.status == "scored"
    assert judged.judgement.warnings == []
    assert {request["options"]["num_ctx"] for request in ollama.requests} <= {24_576, 32_768}
    assert min(ollama.read) > 10_000, "it has read all"


async def test_a_context_that_the_user_sets_for_ollama_is_kept_to(ollama):
    judged = await Judge(Juror("ollama_chat/judge", params={"num_ctx": 6_000}), orders=2).score(group_of(2_500))
    assert judged.judgement.status == "scored"
    assert {request["options"]["num_ctx"] for request in ollama.requests} == {6_000}
    assert max(ollama.read) < 6_000
    assert "were shortened to fit" in judged.judgement.warnings[0]


@pytest.mark.parametrize("words", [2_500, 1_000], ids=["far too long", "a little too long"])
async def test_a_prompt_that_a_server_cuts_is_shortened_and_asked_again(ollama, words):
    params = {"api_base": f"{ollama.url}/v1", "api_key": "none"}
    judge = Judge(Juror(f"openai/cut-{words}", params=params), orders=2)
    judged = await judge.score(group_of(words))
    assert judged.judgement.status == "scored"
    assert "were shortened to fit" in judged.judgement.warnings[0]
    whole = [tokens for tokens in ollama.read if tokens < 4_096]  # the second order may be asked after the first answer
    assert len(whole) == 2, "it has read all of the prompts that gave the scores"
    assert len(ollama.read) <= 4
    assert judged.judgement.calls == len(ollama.requests), "what was cut is paid for"
    before = len(ollama.requests)
    assert (await judge.score(group_of(words - 5))).judgement.status == "scored"
    assert len(ollama.requests) == before + 2, "what the server has room for is remembered"


async def test_a_server_that_always_counts_too_little_gives_no_score(endpoint):
    def cut(request):
        entries = [{"trajectory_id": n, "explanation": "", "score": 0.5} for n in labels_in(request)]
        usage = {"prompt_tokens": 600, "completion_tokens": 20, "total_tokens": 620}
        return says(json.dumps({"scores": entries}), usage)

    endpoint.script = [cut]
    judged = await Judge(Juror("openai/always-cut", params=endpoint.params), orders=1).score(group_of(5_000))
    assert [trajectory.reward for trajectory in judged] == [None] * 4
    assert judged.judgement.status == "unscored"
    assert judged.judgement.calls == len(endpoint.requests)


@pytest.mark.parametrize("counted", [80, 9_000, 20_000], ids=["a fake", "a compact tokenizer", "a wordy one"])
async def test_a_count_that_a_tokenizer_explains_is_no_cut(endpoint, counted):
    def step(request):
        entries = [{"trajectory_id": n, "explanation": "", "score": 0.5} for n in labels_in(request)]
        usage = {"prompt_tokens": counted, "completion_tokens": 20, "total_tokens": counted + 20}
        return says(json.dumps({"scores": entries}), usage)

    endpoint.script = [step]
    judged = await Judge(Juror("openai/honest", params=endpoint.params), orders=1).score(group_of(2_500))
    assert judged.judgement.status == "scored"
    assert judged.judgement.calls == 1
