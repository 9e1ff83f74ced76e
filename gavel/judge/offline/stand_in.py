"""The stand-in judge: rules instead of a model, for use without a key.

It sees what a model would see, the rendered prompt and nothing else, and it is asked as a model is: as a LiteLLM
provider, `gavel/stand-in`. It scores by the rules that it understands in the rubric (`gavel.judge.offline.rules`), or,
when there are none, by checks that fit any agent; asked for scores by criterion, it does so with each criterion's own
text.
`gavel/constant` gives every member the same score: the control.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from gavel.judge.errors import JudgeError
from gavel.judge.offline.rules import Facts, Rule, facts_of, read_rules, score_rules
from gavel.judge.prompt.canonical import Conversation, TextEvent
from gavel.judge.prompt.transcript import read_transcripts
from gavel.judge.reply.criteria import requested_ids, sections
from gavel.llm.types import Message

MODELS = ("stand-in", "constant")

Attempt = Sequence[Conversation]


def reply(model: str, messages: Sequence[Message]) -> str:
    """What one of `MODELS` answers to a judge's prompt, in the reply schema."""
    words = {role: "\n".join(m["content"] for m in messages if m["role"] == role) for role in ("system", "user")}
    attempts = read_transcripts(words["user"])
    if not attempts:
        raise JudgeError(f"gavel/{model} judges groups of trajectories; this prompt shows none.")
    criteria = sections(words["system"])
    scores: list[dict[str, Any]] = []
    for label, attempt in attempts.items():
        for name in requested_ids(words["user"], label):
            score, explanation = 0.5, "Every attempt gets the same score."
            if model == "stand-in":
                rubric = words["system"] if name == label else criteria[name[-1]]
                score, explanation = _verdict(attempt, read_rules(rubric))
            scores.append({"trajectory_id": name, "explanation": explanation, "score": score})
    return json.dumps({"scores": scores}, ensure_ascii=False)


def _verdict(attempt: Attempt, rules: Sequence[Rule]) -> tuple[float, str]:
    facts = facts_of(attempt)
    if rules:
        share, broken = score_rules(rules, facts)
    else:
        checks = _general_checks(attempt, facts)
        share, broken = sum(checks.values()) / len(checks), [name for name, ok in checks.items() if not ok]
    kept = "It keeps every rule." if rules else "It passes the general checks (no rule of the rubric can be checked)."
    return round(share, 2), f"Not kept: {'; '.join(broken)}." if broken else kept


def _general_checks(attempt: Attempt, facts: Facts) -> Mapping[str, bool]:
    checks = {
        "no tool error": facts.errors == 0,
        "a closing message": facts.ends_with_message,
        "anything said or done": bool(facts.calls) or _spoke(attempt),
    }
    if any(conversation.tools for conversation in attempt):
        checks["a tool call"] = bool(facts.calls)
    return checks


def _spoke(attempt: Attempt) -> bool:
    events = (event for conversation in attempt for event in conversation.events)
    return any(isinstance(event, TextEvent) and event.role == "assistant" and event.text.strip() for event in events)
