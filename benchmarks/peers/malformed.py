"""Malformed replies in any format: each is built around the reply that is meant and a draft with other scores.

`means` tells what may come of a reply: "good" = the scores that it means (none is a loss), "maybe" = these or none,
"draft" = the draft's scores or none, since the reply ends with them, "none" = no score at all. A reply in the format
`{"scores": [{"trajectory_id", "explanation", "score"}]}` has further cases in `replies.json`.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

GOOD = {"sim-a": 0.9, "sim-b": 0.2, "sim-c": 0.5}
DRAFT = {"sim-a": 0.1, "sim-b": 0.8, "sim-c": 0.3}
Meaning = Literal["good", "maybe", "draft", "none"]


@dataclass(frozen=True, slots=True)
class Reply:
    message: dict[str, Any]
    finish_reason: str = "stop"
    has_choices: bool = True
    error: dict[str, Any] | None = None
    """The body's error, sent with status 200."""


@dataclass(frozen=True, slots=True)
class Case:
    means: Meaning
    reply: Callable[[str, str], Reply]
    """From the reply that is meant and the draft, both well-formed."""


def _text(means: Meaning, template: str, finish_reason: str = "stop") -> Case:
    """`template` has GOOD and DRAFT in it."""

    def reply(good: str, draft: str) -> Reply:
        return Reply({"content": template.replace("GOOD", good).replace("DRAFT", draft)}, finish_reason)

    return Case(means, reply)


def _object(text: str) -> str:
    return text[text.index("{") :]


CASES: dict[str, Case] = {
    "clean": _text("good", "GOOD"),
    "draft": _text("draft", "DRAFT"),
    "fence": _text("good", "```json\nGOOD\n```"),
    "plain_fence": _text("good", "Here it is:\n\n```\nGOOD\n```\nLet me know!"),
    "prose": _text("good", "I compared them with care.\n\nGOOD"),
    "thanks": _text("good", "GOOD\n\nI hope that this helps."),
    "thought": _text("good", "<think>At first sight: DRAFT. But no.</think>\nGOOD"),
    "thought_cut": _text("none", "<think>At first sight: DRAFT\nBut the second one", "length"),
    "thought_open": _text("none", "<think>At first sight: DRAFT\nBut the second one is"),
    "thought_other": _text("good", "◁think▷At first sight: DRAFT. But no.◁/think▷\nGOOD"),
    "thought_upper_cut": _text("none", "[THINK]Perhaps DRAFT\nbut then again"),
    "channels": _text(
        "good",
        "<|channel|>analysis<|message|>Perhaps DRAFT<|end|><|start|>assistant<|channel|>final<|message|>GOOD",
    ),
    "channel_cut": _text("none", "<|channel|>analysis<|message|>Perhaps DRAFT, or should I", "length"),
    "headings": _text("maybe", "**Thinking**\nPerhaps DRAFT\n\n**Answer**\nGOOD"),
    "heading_cut": _text("none", "**Thinking**\nA first draft: DRAFT\n\nNow let me check the first again", "length"),
    "draft_then_final": _text("maybe", "Draft: DRAFT\n\nFinal: GOOD"),
    "taken_back": _text("none", "GOOD\n\nWait, I mixed the two up: it is the other way round."),
    "corrected": _text("draft", "GOOD\n\nCorrection, after a second look:\nDRAFT"),
    "correction_cut": _text("none", "```json\nGOOD\n```\nOn reflection that is wrong:\n```json\n{", "length"),
    "counterfactual": _text("maybe", "GOOD\n\nHad the first one been wrong, I would have said:\nDRAFT"),
    "final_cut": _text("none", "My draft:\nDRAFT\n\nMy final answer:\n{", "length"),
    "twice": _text("good", "GOOD\n\nGOOD"),
    "refusal": _text("none", "I'm sorry, but I can't help with that."),
    "empty": _text("none", ""),
    "empty_object": _text("none", "{}"),
    "cut": Case("none", lambda good, draft: Reply({"content": good[: 2 * len(good) // 3]}, "length")),
    "single_quotes": Case("good", lambda good, draft: Reply({"content": str(json.loads(_object(good)))})),
    "trailing_comma": Case("good", lambda good, draft: Reply({"content": _object(good)[:-1] + ",}"})),
    "comment": Case("good", lambda good, draft: Reply({"content": _object(good)[:-1] + " // as I see it\n}"})),
    "wrapped": Case("maybe", lambda good, draft: Reply({"content": f'{{"response": {_object(good)}}}'})),
    "draft_key": Case(
        "maybe", lambda good, draft: Reply({"content": f'{{"final": {_object(good)}, "draft": {_object(draft)}}}'})
    ),
    "revised_key": Case(
        "draft", lambda good, draft: Reply({"content": f'{_object(good)[:-1]}, "revised": {_object(draft)}}}'})
    ),
    "reasoning_alone": Case("draft", lambda good, draft: Reply({"content": None, "reasoning_content": draft})),
    "reasoning_beside": Case("good", lambda good, draft: Reply({"content": good, "reasoning_content": draft})),
    "no_choices": Case("none", lambda good, draft: Reply({}, has_choices=False)),
    "error_body": Case("none", lambda good, draft: Reply({}, error={"message": "overloaded", "code": 529})),
}


FILED = {
    f"file{number}": case
    for number, case in enumerate(json.loads(Path(__file__).with_name("replies.json").read_text("utf-8"))["cases"])
}
"""Cases of replies to three members by label: "content" or "message", and "expected" scores."""


def filed_reply(name: str, labels: dict[str, str]) -> Reply:
    """The reply of a case of `FILED`; `labels` are those of the members A, B and C."""
    case = FILED[name]
    message = case.get("message", {"content": case.get("content")})
    if message is None:
        return Reply({}, has_choices=False)
    text = json.dumps(message)
    for letter, label in {**labels, "D": "DDD9", "Z": "ZZZ9"}.items():
        text = text.replace(f"<{letter}>", label)
    return Reply(json.loads(text))
