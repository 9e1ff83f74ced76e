"""Replies as models give them, through the whole engine: the right scores, or none."""

import json
from pathlib import Path
from typing import Any

import pytest

from gavel.judge.judge import Judge
from gavel.judge.panel.juror import Juror
from gavel.llm.types import Message
from tests.endpoint import Answer, Request, labels_in, says
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
    judged = await judge.score(saying(*MEMBERS))
    assert judged.judgement
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
    judged = await Judge(judges, orders=1).score(saying(*MEMBERS))
    assert [trajectory.reward for trajectory in judged] == [0.9, 0.2, 0.5]
    assert judged.judgement
    found = {"tool call", "content parts"} & judged.judgement.repairs.keys()
    assert [judged.judgement.repairs[kind] for kind in found] == [len(judges)]
