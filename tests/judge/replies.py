"""Replies that do not mean the numbers in them: thoughts that are cut off, scores that are taken back, other scales.

`malformed_reply(random)` draws one, with what it means: scores by label, or None when no number may come of it. Tags,
drafts, cuts, corrections, scales and forms are drawn independently of each other.
"""

import json
import re
from collections.abc import Callable
from pathlib import Path
from random import Random

LABELS = ("K7QX", "W3RT", "M4TD", "ZBH9")
Scores = dict[str, float]

_TEXTS = json.loads((Path(__file__).parent / "data" / "malformed.json").read_text(encoding="utf-8"))
"""Beginnings of thoughts, headings, and corrections and scales that take the numbers back or rescale them."""
CUTS = ("after the draft", "before the answer", "in the answer", "nowhere")
DRAFTS: tuple[Callable[[str, Random], str], ...] = (
    lambda draft, random: f"maybe {draft}",
    lambda draft, random: f"I compare them.\n\n```json\n{draft}\n```",
    lambda draft, random: f"K7QX looks good so far.\n{draft}",
    lambda draft, random: draft,
    lambda draft, random: f"{draft}\nHmm, wait.",
    lambda draft, random: f"So:\n{draft}\n\nBut the policy",
)


def listed(scores: Scores, why: Callable[[], str]) -> list[dict[str, object]]:
    return [{"trajectory_id": label, "explanation": why(), "score": score} for label, score in scores.items()]


def wrapped(body: str, random: Random) -> str:
    """The object in one of the forms that wrap it."""
    return random.choice(
        [body, body, f"```json\n{body}\n```", f"```\n{body}\n```", f"\n{body}\n", f"<answer>{body}</answer>"]
    )


def drawn(labels: list[str], random: Random) -> Scores:
    return {label: random.choice([0.1, 0.2, 0.4, 0.45, 0.7, 0.8, 0.9]) for label in labels}


def other_than(scores: Scores, random: Random) -> Scores:
    """Scores that differ for each label."""
    return {
        label: round(random.choice([v for v in (0.15, 0.25, 0.55, 0.65, 0.95) if v != score]), 2)
        for label, score in scores.items()
    }


def as_json(scores: Scores, random: Random) -> str:
    entries = listed(scores, lambda: random.choice(["why", "It looked first.", "3 of 5 steps"]))
    value = random.choice([{"scores": entries}, {"scores": entries}, entries, scores, {"result": {"scores": entries}}])
    return json.dumps(value, indent=random.choice([None, None, 2]))


def in_thoughts(labels: list[str], random: Random) -> tuple[str, Scores | None]:
    """A draft in thoughts that are cut off somewhere, or closed."""
    final, draft = drawn(labels, random), ""
    draft = as_json(other_than(final, random), random)
    written = random.choice(DRAFTS)(draft, random)
    answer = wrapped(as_json(final, random), random)
    if random.random() < 0.3:
        return random.choice(_TEXTS["headings"]) + written, None
    opening, closing = random.choice(_TEXTS["open_thoughts"])
    match random.choice(CUTS):
        case "after the draft":
            return opening + written, None
        case "before the answer":
            return opening + written + closing[: random.randrange(len(closing))], None
        case "in the answer":
            whole = opening + written + closing + answer
            end = len(opening + written + closing)
            object_end = end + max(answer.rfind("}"), answer.rfind("]"))
            return whole[: random.randint(end, object_end)], final
        case _:
            return opening + written + closing + answer, final


def taken_back(labels: list[str], random: Random) -> tuple[str, Scores | None]:
    """A whole answer, then a correction of it."""
    final = drawn(labels, random)
    ranked = sorted(labels, key=lambda label: final[label])
    if final[ranked[0]] == final[ranked[-1]]:
        final[ranked[0]] = 0.05
    if final[labels[0]] == final[labels[1]]:
        final[labels[0]] = round(final[labels[0]] - 0.03, 2)
        ranked = sorted(labels, key=lambda label: final[label])
    new = other_than(final, random)
    again = as_json(new, random)
    words = {
        **{"a": labels[0], "b": labels[1], "sa": final[labels[0]], "sb": final[labels[1]], "new": new[labels[0]]},
        **{"again": again, "cut": again[: random.randrange(1, len(again) - 1)], "worst": ranked[0], "best": ranked[-1]},
    }
    correction = random.choice(_TEXTS["corrections"]).format(**words)
    return wrapped(as_json(final, random), random) + random.choice(["\n", "\n\n", " "]) + correction, None


def on_another_scale(labels: list[str], random: Random) -> tuple[str, Scores | None]:
    """Numbers from 0 to 1 that a text before them puts on another scale, or calls no answer."""
    final = drawn(labels, random)
    before = random.choice(_TEXTS["scales"]).format(a=labels[0], b=labels[1])
    return before + random.choice(["\n", "\n\n", " "]) + wrapped(as_json(final, random), random), None


KINDS = (in_thoughts, taken_back, on_another_scale)


def malformed_reply(random: Random) -> tuple[str, list[str], Scores | None]:
    """A reply, the labels that were asked for, and the scores that it means; None = none may come of it.

    A reply that means scores may be refused too.
    """
    labels = random.sample(LABELS, k=random.choice([2, 3, 4]))
    labels = list(dict.fromkeys(["K7QX", "W3RT", *labels]))
    random.shuffle(labels)
    reply, means = random.choice(KINDS)(labels, random)
    return reply, labels, means


WRITTEN: tuple[Callable[[object], str], ...] = (
    json.dumps,
    repr,
    lambda value: json.dumps(value, indent=1),
    lambda value: re.sub(r'(?<!\\)"', "”", json.dumps(value)),
    lambda value: re.sub(r'"(\w+)":', r"\1:", json.dumps(value)),
    lambda value: json.dumps(value).replace('\\"', '"'),
    lambda value: json.dumps(json.dumps(value)),
    lambda value: re.sub(r",(?= *\")", ", // note\n", json.dumps(value)),
)
"""Ways to write a JSON value that can mean only that value."""
DRAFT = '{"K7QX": 0.1}'
AROUND: tuple[Callable[[str], str], ...] = (
    lambda reply: reply,
    lambda reply: f"```json\n{reply}\n```",
    lambda reply: f"\ufeff{reply}\n",
    lambda reply: f"<think>maybe {DRAFT}</think>{reply}",
    lambda reply: f"Not yet: {DRAFT}</think>\n\n{reply}",
    lambda reply: f"[THINK]maybe {DRAFT}[/THINK]```\n{reply}\n```",
    lambda reply: (
        f"<|channel|>analysis<|message|>maybe {DRAFT}<|end|><|start|>assistant<|channel|>final<|message|>{reply}"
    ),
    lambda reply: f"{reply}<|im_end|>",
)
"""What servers and models put around a value that stands alone."""
WHY = ("why", 'said "hi" twice', "it's {fine}, truly", "W3RT was slower: 0.1", "a, b: c // d", "<think>no</think>", "")


def clean_reply(random: Random) -> tuple[str, list[str], Scores]:
    """A reply whose value stands alone, in a form and in a spelling of its own. It is to be read."""
    labels = random.sample(LABELS, k=random.choice([2, 3, 4]))
    scores = drawn(labels, random)
    entries = listed(scores, lambda: random.choice(WHY))
    random.shuffle(entries)
    value = random.choice([{"scores": entries}, entries, scores, {"scores": scores}, {"result": {"scores": entries}}])
    written = random.choice(WRITTEN)
    return random.choice(AROUND)(written(value)), labels, scores


REFUSED_LABELS = ("K7QX", "W3RT", "M4TD")


def refused_replies() -> dict[str, str]:
    """Replies of many kinds from which no number may come, by name; each was written by hand."""
    written: dict[str, str] = json.loads((Path(__file__).parent / "data" / "refused.json").read_text(encoding="utf-8"))
    first, other = (dict(zip(REFUSED_LABELS, scores, strict=True)) for scores in ((0.9, 0.2, 0.5), (0.3, 0.6, 0.1)))
    marks = {"<FLAT>": json.dumps(first), "<OTHER FLAT>": json.dumps(other)}
    marks |= {
        name: json.dumps({"scores": listed(s, lambda: "why")}) for name, s in (("<WHOLE>", first), ("<OTHER>", other))
    }
    for mark, text in marks.items():
        written = {name: reply.replace(mark, text) for name, reply in written.items()}
    return written


REFUSED = refused_replies()
