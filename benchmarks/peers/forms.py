"""The reply formats that the libraries ask a judge for, each written from the scores of the members shown.

A judge of a pair prefers the member with the higher score; where a format has no tie, equal members are told apart by
chance. Numbers are as fine as the format allows, so that a coarse scale costs agreement only where it is the format's.
"""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from engine_quality import ID

from gavel.judge.prompt.canonical_group import TextEvent
from gavel.judge.prompt.fenced_transcript import read_transcripts
from gavel.judge.reply.verdict import requested_ids

Write = Callable[[Sequence[float], str, Random], str]
"""From the scores in the order shown, the prompt and a source of chance."""


def ids_in_order(prompt: str) -> list[str]:
    """The members' ids, each once, in the order in which they first occur."""
    return list(dict.fromkeys(ID.findall(prompt)))


def ids_in_transcripts(prompt: str) -> list[str]:
    shown: list[str] = []
    for attempt in read_transcripts(prompt).values():
        said = [event.text for part in attempt for event in part.events if isinstance(event, TextEvent)]
        shown.append(ID.findall("\n".join(said))[0])
    return shown


@dataclass(frozen=True, slots=True)
class Form:
    write: Write
    shown: Callable[[str], list[str]] = ids_in_order
    """Ids of the members in a prompt, in the order shown."""
    labels: Callable[[str, Sequence[str]], list[str]] | None = None
    """Of a format with labels, those of the members shown."""


def labels_in_transcripts(prompt: str, shown: Sequence[str]) -> list[str]:
    return [name for label in read_transcripts(prompt) for name in requested_ids(prompt, label)]


def numbers(prompt: str, shown: Sequence[str]) -> list[str]:
    return [str(number) for number in range(1, len(shown) + 1)]


def by_label(scores: Sequence[float], prompt: str, chance: Random) -> str:
    return _by_id(labels_in_transcripts(prompt, ()), scores)


def by_number(scores: Sequence[float], prompt: str, chance: Random) -> str:
    return _by_id(numbers(prompt, [""] * len(scores)), scores)


def _by_id(names: Sequence[str], scores: Sequence[float]) -> str:
    entries = [
        {"trajectory_id": name, "explanation": "As seen.", "score": score}
        for name, score in zip(names, scores, strict=True)
    ]
    return json.dumps({"scores": entries})


def in_order(scores: Sequence[float], prompt: str, chance: Random) -> str:
    return "As seen.\n" + json.dumps({"scores": list(scores)})


def winner(scores: Sequence[float], prompt: str, chance: Random) -> str:
    first, second = scores
    return "As seen.\n" + json.dumps({"winner": "tie" if first == second else "A" if first > second else "B"})


def rank(scores: Sequence[float], prompt: str, chance: Random) -> str:
    best_first = _best_first(scores, chance)
    return json.dumps({"reason": "As seen.", "rank": [best_first.index(n) + 1 for n in range(len(scores))]})


def selection(scores: Sequence[float], prompt: str, chance: Random) -> str:
    """As many indices as the prompt asks for, which is written there as "top N"."""
    asked = re.search(r"top (\d+)", prompt)
    count = int(asked[1]) if asked else len(scores) // 2
    return json.dumps({"reasoning": "As seen.", "selected_indices": _best_first(scores, chance)[:count]})


def out_of_ten(scores: Sequence[float], prompt: str, chance: Random) -> str:
    return json.dumps({"reasoning": "As seen.", "score": round(10 * scores[0], 2)})


def pair_scores(scores: Sequence[float], prompt: str, chance: Random) -> str:
    """Scores from 1 to 5, and a ranking from 1 (the first is much better) to 6."""
    gap = scores[0] - scores[1] or chance.choice((-1e-9, 1e-9))
    rung = 2.5 if abs(gap) > 0.4 else 1.5 if abs(gap) > 0.15 else 0.5
    rated = {f"score_{n}": round(1 + 4 * score) for n, score in enumerate(scores, start=1)}
    return json.dumps({**rated, "ranking": round(3.5 - rung if gap > 0 else 3.5 + rung)})


def _best_first(scores: Sequence[float], chance: Random) -> list[int]:
    return sorted(range(len(scores)), key=lambda n: (-scores[n], chance.random()))


LEVELS = ("very poor", "poor", "fair", "good", "very good")


def option(scores: Sequence[float], prompt: str, chance: Random) -> str:
    """The number of the option nearest to the score, as the prompt has shuffled them."""
    level = LEVELS[min(4, int(scores[0] * 5))]
    found = re.search(rf"(?m)^\W*(\d+)\W+{level}\b", prompt)
    assert found, "the prompt lists the options"
    return json.dumps({"selected_option": int(found[1]), "explanation": "As seen."})


FORMS = {
    "labels": Form(by_label, ids_in_transcripts, labels_in_transcripts),
    "numbers": Form(by_number, labels=numbers),
    "list": Form(in_order),
    "winner": Form(winner),
    "rank": Form(rank),
    "selection": Form(selection),
    "rating": Form(out_of_ten),
    "pair": Form(pair_scores),
    "option": Form(option),
}
