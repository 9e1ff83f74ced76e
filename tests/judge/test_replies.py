"""Replies and refusals as models give them, through the whole engine: the right scores, or none."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from gavel.judge.judge import Judge
from gavel.judge.panel.juror import Juror
from gavel.llm.types import Message
from gavel.scenarios.group import TrajectoryGroup
from tests.endpoint import Answer, Endpoint, Request, fails, labels_in, says, scores
from tests.judge.groups import saying

pytestmark = pytest.mark.slow

REPLIES = json.loads((Path(__file__).parent / "data" / "replies.json").read_text(encoding="utf-8"))
"""`message`: what the judge says of members A, B and C, with their labels as <A>, <B>, <C> and labels never given out
as <D>, <Z>; null = no choices. `scores`: of A, B and C; null = none may come of it."""

MEMBERS = ("aaa", "bb", "c")


def places(labels: list[str], prompt: str) -> dict[str, str]:
    """What stands for each label: members are told apart by what they say."""
    said = {text: prompt.find(f"assistant: {text}\n") for text in MEMBERS}
    shown = sorted((text for text in MEMBERS if said[text] >= 0), key=lambda text: said[text])
    labels = labels[: len(shown)]  # a search for refused members shows them beside a harmless attempt
    found = {f"<{'ABC'[MEMBERS.index(text)]}>": label for text, label in zip(shown, labels, strict=True)}
    return found | {"<D>": "DDD9", "<Z>": "ZZZ9"}


def filled(message: Any, places: dict[str, str]) -> Any:
    text = json.dumps(message)
    for mark, label in places.items():
        text = text.replace(mark, label)
    return json.loads(text)


@pytest.mark.parametrize("case", REPLIES, ids=lambda case: case["name"])
async def test_a_reply_over_http_gives_the_right_scores_or_none(case, endpoint):
    def step(request: Request) -> Answer:
        if case["message"] is None:
            return Answer(says("x").body | {"choices": []})
        return says(**filled(case["message"], places(labels_in(request), request["messages"][1]["content"])))

    endpoint.script = [step]
    judge = Judge(Juror("openai/judge", params=endpoint.params), orders=1)
    judged: Any = await judge.score(saying(*MEMBERS))
    rewards, calls = [trajectory.reward for trajectory in judged], len(endpoint.requests)
    if case["name"] == "null score":
        assert (rewards, calls) == ([None, *case["scores"][1:]], 1)
    elif case["scores"] and not (case.get("may_be_refused") and rewards == [None] * 3):
        assert rewards == pytest.approx(case["scores"])
        assert (judged.judgement.status, calls) == ("scored", 1)
    else:
        assert rewards == [None] * 3
        assert (judged.judgement.status, judged.judgement.repairs) == ("unscored", {})
        reasons = [one.judgement.reason or "" for one in judged if one.judgement]
        assert calls == 3 or all("refuses" in reason for reason in reasons)  # which member, was asked


def tool_call(arguments: str) -> dict[str, Any]:
    return {"id": "1", "type": "function", "function": {"name": "submit_scores", "arguments": arguments}}


FULL = json.dumps(dict(zip(("<A>", "<B>", "<C>"), (0.9, 0.2, 0.5), strict=True)))

ELSEWHERE = {
    "tool call": {"content": None, "tool_calls": [tool_call(FULL)]},
    "tool call after prose": {"content": "Let me submit the scores.", "tool_calls": [tool_call(FULL)]},
    "tool call, encoded twice": {"content": None, "tool_calls": [tool_call(json.dumps(FULL))]},
    "function call": {"content": None, "function_call": {"name": "submit", "arguments": FULL}},
    "content parts": {"content": [{"type": "thinking", "thinking": "{"}, {"type": "text", "text": FULL}]},
}


@pytest.mark.parametrize("name", ELSEWHERE)
async def test_scores_are_found_wherever_in_the_message_they_are_and_that_is_counted(name, endpoint):
    def judge(messages, schema) -> Message:
        return filled(ELSEWHERE[name], places(labels_in({"messages": messages}), messages[1]["content"]))

    endpoint.script = [lambda request: says(**judge(request["messages"], {}))]
    judges = [judge, Juror("openai/judge", params=endpoint.params)]
    judged: Any = await Judge(judges, orders=1).score(saying(*MEMBERS))
    assert [trajectory.reward for trajectory in judged] == [0.9, 0.2, 0.5]
    found = {"tool call", "content parts"} & judged.judgement.repairs.keys()
    assert [judged.judgement.repairs[kind] for kind in found] == [len(judges)]


FORBIDDEN = "FORBIDDEN"
FILTERED = says("")
FILTERED.body["choices"][0]["finish_reason"] = "content_filter"
REFUSALS: dict[str, Any] = {
    "finish reason content_filter": lambda request: FILTERED,
    "400 of a content policy": fails(400, "Your request was rejected as a result of our safety system."),
    "400 of a content filter": fails(400, "The prompt triggered the content management policy."),
    "403 of a moderation": fails(403, 'requires moderation and your input was flagged for "violence"'),
    "refusal field": lambda request: says(None, refusal="I can't assist with that."),
    "plain words": lambda request: says("I’m sorry, I can’t help with that."),
}


def refusing(refusal: Any, *, least: int = 1):
    """Answers well unless the prompt holds the forbidden word at least `least` times."""

    def step(request: Request) -> Answer:
        if request["messages"][1]["content"].count(FORBIDDEN) >= least:
            return refusal(request)
        return scores(*(0.1 + 0.1 * n for n in range(len(labels_in(request)))))(request)

    return step


def judge(endpoint: Endpoint, **options: Any) -> Judge:
    return Judge(Juror("openai/judge", params=endpoint.params), **options)


def group(size: int, *refused: int) -> TrajectoryGroup:
    return saying(*(f"attempt {n} {FORBIDDEN if n in refused else ''}" for n in range(size)))


@pytest.mark.parametrize("kind", REFUSALS)
async def test_only_the_member_whose_text_is_refused_is_unscored(endpoint: Endpoint, kind: str):
    endpoint.script = [refusing(REFUSALS[kind])]
    judged = await judge(endpoint).score(group(8, 3))
    assert [n for n, trajectory in enumerate(judged) if trajectory.reward is None] == [3]
    assert judged.judgement.status == "partial"
    assert judged.judgement.lost_orders == 0
    refused = judged.trajectories[3].judgement
    assert (refused.reason or "").startswith("the judge model refuses its text: ")
    others = [t.judgement for n, t in enumerate(judged) if n != 3]
    assert all(judgement and len(judgement.votes) == 2 for judgement in others)
    # The two orders stay mirror images of each other, so that positions still cancel.
    assert all(judgement and sum(vote.position for vote in judgement.votes) == 6 for judgement in others)
    tries = 3 if kind == "plain words" else 1
    assert len(endpoint.requests) <= tries * (2 + 4) + 2 + 3
    assert judged.judgement.calls == len(endpoint.requests)


@pytest.mark.parametrize("size", [2, 3, 8, 20])
async def test_a_model_that_refuses_everything_scores_nobody_and_is_asked_a_few_times(endpoint: Endpoint, size: int):
    endpoint.script = [REFUSALS["finish reason content_filter"]]
    judged = await judge(endpoint).score(group(size))
    assert judged.judgement.status == "unscored"
    assert "refuses" in (judged.judgement.reason or "")
    assert all(trajectory.reward is None for trajectory in judged)
    assert len(endpoint.requests) <= 8 + 8


async def test_texts_that_are_refused_only_together_leave_the_group_unscored(endpoint: Endpoint):
    endpoint.script = [refusing(REFUSALS["400 of a content policy"], least=2)]
    judged = await judge(endpoint).score(group(8, 2, 6))
    assert judged.judgement.status == "unscored"
    assert "refuses these texts together, but none alone" in (judged.judgement.reason or "")
    assert len(endpoint.requests) <= 10


async def test_a_member_that_is_refused_does_not_cut_the_others_of_its_pairs(endpoint: Endpoint):
    endpoint.script = [refusing(REFUSALS["400 of a content policy"])]
    judged = await judge(endpoint, mode="pairwise").score(group(5, 2))
    assert [n for n, trajectory in enumerate(judged) if trajectory.reward is None] == [2]
    reasons = Counter(t.judgement.reason for t in judged if t.judgement and t.judgement.reason)
    assert [reason.startswith("the judge model refuses its text") for reason in reasons] == [True]
