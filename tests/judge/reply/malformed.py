"""Replies that do not mean the numbers in them: thoughts that are cut off, scores that are taken back, other scales.

`malformed_reply(random)` draws one, with what it means: scores by label, or None when no number may come of it. Tags,
drafts, cuts, corrections, scales and forms are drawn independently of each other.
"""

import json
import re
from collections.abc import Callable
from random import Random

LABELS = ("K7QX", "W3RT", "M4TD", "ZBH9")
Scores = dict[str, float]

OPEN_THOUGHTS = (
    ("<think>", "</think>"),
    ("<thinking>\n", "\n</thinking>"),
    ("<thought>", "</thought>"),
    ("<reasoning>", "</reasoning>"),
    ("<reflection>", "</reflection>"),
    ("<scratchpad>\n", "</scratchpad>"),
    ("<analysis>", "</analysis>"),
    ("<inner_monologue>", "</inner_monologue>"),
    ("<antThinking>", "</antThinking>"),
    ("<seed:think>", "</seed:think>"),
    ("<mm:think>", "</mm:think>"),
    ("<longcat_think>\n", "</longcat_think>"),
    ("◁think▷", "◁/think▷"),
    ("[THINK]", "[/THINK]"),
    ("[thinking]\n", "[/thinking]\n"),
    ("[REASONING]\n", "[/REASONING]\n"),
    ("【思考】", "【/思考】"),
    ("〈think〉", "〈/think〉"),
    ("＜think＞", "＜/think＞"),
    ("&lt;think&gt;", "&lt;/think&gt;"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<|begin_of_thought|>\n", "\n<|end_of_thought|>\n"),
    ("<|thinking|>", "<|/thinking|>"),
    ("<|channel|>analysis<|message|>", "<|end|><|start|>assistant<|channel|>final<|message|>"),
    ("<|start|>assistant<|channel|>commentary<|message|>", "<|end|><|start|>assistant<|channel|>final<|message|>"),
    ("<|im_start|>think\n", "<|im_end|>\n<|im_start|>assistant\n"),
    ('<think effort="high">', "</think>"),
    ("<THINK>", "</THINK>"),
    ("<ponder>", "</ponder>"),
    ("<mulling-over>\n", "\n</mulling-over>\n"),
    ("<zorp>", "</zorp>"),
    ("<|zorp_start|>\n", "<|zorp_end|>\n"),
    ("⟦deliberation⟧ ", "⟦/deliberation⟧"),
    ("{{thinking}} ", "{{/thinking}}"),
    ("<!-- thinking: ", "-->"),
    ("```thinking\n", "\n```\n"),
    ("<überlegung>\n", "</überlegung>\n"),
    ("<размышление>", "</размышление>"),
    ("<思考>\n", "</思考>\n"),
    ("<details><summary>Thoughts</summary>\n", "</summary></details>\n\n"),
)
HEADINGS = (
    "**Thinking**\n",
    "**Thinking:**\n",
    "**Thinking...**\n\n",
    "## Thinking\n",
    "# Thought process\n\n",
    "**My thoughts**\n",
    "*Thinking*\n",
    "__Reasoning__\n",
    "### Chain of thought\n",
    "Thinking...\n",
    "Thinking:\n",
    "Thought process:\n",
    "THOUGHTS:\n",
    "Scratchpad:\n",
    "**Internal monologue**\n",
    "**Brainstorming**\n",
    "== Thinking ==\n",
    "--- thinking ---\n",
    ":::thinking\n",
    "**Denkprozess**\n",
    "**Überlegungen**\n",
    "**Pensamiento**\n",
    "## Réflexion\n",
    "**Размышления**\n",
    "**思考过程**\n",
    "思考：\n",
    "> **Thinking**\n",
    "**Zorp**\n",
)
DRAFTS: tuple[Callable[[str, Random], str], ...] = (
    lambda draft, random: f"maybe {draft}",
    lambda draft, random: f"First guess:\n{draft}",
    lambda draft, random: f"I compare them.\n\n```json\n{draft}\n```",
    lambda draft, random: f"K7QX looks good so far.\n{draft}",
    lambda draft, random: draft,
    lambda draft, random: f"{draft}\nHmm, wait.",
    lambda draft, random: f"So:\n{draft}\n\nBut the policy",
)
CUTS = ("after the draft", "before the answer", "in the answer", "nowhere")

CORRECTIONS = (
    "Wait, I mixed up {a} and {b}.",
    "wait, I mixed up the first two",
    "Correction: {a} should be {new}.",
    "So {a} should be {new}",
    "Actually, {a} deserves {new}.",
    "On reflection {a} is worth {new} and {b} {sa}.",
    "Final scores: {a} {sb}, {b} {sa}.",
    "Final:\n{a}: {sb}\n{b}: {sa}",
    "{a}: {new}\n{b}: {sb}",
    "- {a}: {sb}\n- {b}: {sa}",
    "| Trajectory | Score |\n|---|---|\n| {a} | {sb} |\n| {b} | {sa} |",
    "| {a} | {new} |",
    "Trajectory 1: {new}, trajectory 2: {sb}",
    "Swap the scores of {a} and {b}.",
    "Please swap the first two.",
    "The first and the last are interchanged.",
    "Sorry, the two scores above are the wrong way round.",
    "Oops - {a} and {b} the other way around.",
    "I meant {new} for {a}.",
    "Add 0.1 to each.",
    "Multiply by 10 to get points.",
    "Subtract a tenth from every score.",
    "{a} should have been scored higher.",
    "Ignore the scores above.",
    "Scratch that.",
    "```json\n{again}\n```",
    "```json\n{cut}",
    "Updated:\n```json\n{cut}",
    "```json\n",
    "{again}",
    "Had {a} failed, it would be:\n{again}",
    "If I were stricter: {again}",
    "For example, a harsher judge might say {again}",
    "Corrected scores:",
    "Revised: {a}",
    "<think>Hmm, {a} is rather {new}.</think>",
    "<think>Hmm, wait",
    '{{"corrected": {{"{a}": {new}}}}}',
    '{{"{a}": {new}}}',
    "[{new}, {sb}]",
    "{new}, {sb}",
    "更正：{a}应为{new}。",
    "抱歉，前两个弄反了。",
    "等等，{a} 和 {b} 应该互换。",
    "Perdón, confundí {a} con {b}.",
    "Corrección: {a} {new}.",
    "En realidad, los dos primeros están al revés.",
    "Korrektur: {a} ist {new}.",
    "Entschuldigung, die ersten beiden sind vertauscht.",
    "Moment, {a} und {b} sind verwechselt.",
    "Извините, я перепутал {a} и {b}.",
    "Исправление: {a} — {new}.",
    "Pardon, j'ai inversé les deux premiers.",
    "訂正：{a}と{b}が逆でした。",
    "{a} > {b}\n{b} is the best.",
    "{worst} is the best.",
    "{worst} > {best}",
    "1 is the worst score here, 0 the best.",
    "Lower is better.",
    "All scores are out of 10.",
    "These are percentages.",
    "(0 = best, 1 = worst)",
    "The scores are failure probabilities, so lower means better.",
    "je kleiner, desto besser",
    "Je niedriger, desto besser.",
    "Menor es mejor.",
    "分数越低越好。",
    "Чем меньше, тем лучше.",
)
SCALES = (
    "On a scale of 1 (poor) to 5 (excellent):",
    "Scale: 1 (poor) to 5",
    "Scores out of 10:",
    "Scores (1-10):",
    "I rate each from 0 to 100.",
    "Ratings from 1 to 5, divided by nothing:",
    "Scores are 0-100:",
    "Points (max 10):",
    "Lower is better:",
    "0 is best, 1 is worst:",
    "0 = perfect, 1 = useless",
    "Scores as percentages:",
    "In percent:",
    "Penalty points (higher is worse):",
    "Each number is the probability that the attempt failed:",
    "Scores on a five-point scale:",
    "On a scale of one to ten:",
    "The smaller the number, the better the attempt.",
    "Skala von 1 (schlecht) bis 5 (sehr gut):",
    "Punkte von 0 bis 10:",
    "Je kleiner die Zahl, desto besser:",
    "Escala de 1 (malo) a 5 (excelente):",
    "Puntuación de 0 a 10, menor es mejor:",
    "Échelle de 1 (mauvais) à 5 (excellent) :",
    "Шкала от 1 (плохо) до 5 (отлично):",
    "Оценки от 1 до 10:",
    "评分标准：1分（差）到5分（优）：",
    "满分10分：",
    "分数越低越好：",
    "スコア（1〜5）：",
    "Golf scoring applies:",
    "Inverted scores:",
    "| Trajectory | Score (1-5) |\n|---|---|\n| {a} | 4 |\n| {b} | 2 |\n",
    "{a}: 7/10\n{b}: 3/10\n",
    "{a} gets 4 stars, {b} 2 stars.\n",
    "Example:",
    "For example, a careless judge would say:",
    "Had the refund been verified, the scores would be:",
    "Hypothetically:",
    "Draft:",
    "Not my final answer:",
    "Preliminary scores:",
    "If I ignored the policy:",
    "Beispiel:",
    "Por ejemplo:",
    "例如：",
)
FIELDS = (
    {"rating_scale": "1 (poor) to 5 (excellent)"},
    {"rating_scale": "1-5"},
    {"scale": "out of 10"},
    {"scale": {"min": 1, "max": 5}},
    {"scale": "percent"},
    {"scale": [1, 5]},
    {"max_score": 10},
    {"out_of": 10},
    {"lower_is_better": True},
    {"higher_is_better": False},
    {"direction": "lower is better"},
    {"direction": "descending"},
    {"note": "lower is better"},
    {"note": "1 (poor) to 5 (excellent)"},
    {"note": "scores are out of 10"},
    {"note": "K7QX and W3RT are swapped"},
    {"note": "wait, I mixed up two of them"},
    {"comment_on_scale": "0 = best, 1 = worst"},
    {"unit": "percent"},
    {"unit": "points of 10"},
    {"legend": {"0": "best", "1": "worst"}},
    {"score_type": "penalty"},
    {"inverted": True},
    {"best_is": 0},
)
BESIDE = (
    "corrected",
    "final",
    "revised",
    "updated",
    "amended",
    "adjusted_scores",
    "after_review",
    "v2",
    "new",
    "fixed",
    "korrigiert",
    "更正",
)
ENTRY_FIELDS = (
    {"corrected_score": 0.31},
    {"revised": 0.31},
    {"adjusted_score": 0.31},
    {"out_of": 10},
    {"max": 5},
    {"scale": "1-5"},
    {"final_score": 0.31},
    {"new_score": 0.31},
    {"score_10": 3.1},
    {"note": "should be 0.31"},
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
        return random.choice(HEADINGS) + written, None
    opening, closing = random.choice(OPEN_THOUGHTS)
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
    correction = random.choice(CORRECTIONS).format(**words)
    return wrapped(as_json(final, random), random) + random.choice(["\n", "\n\n", " "]) + correction, None


def on_another_scale(labels: list[str], random: Random) -> tuple[str, Scores | None]:
    """Numbers from 0 to 1 that a text before them puts on another scale, or calls no answer."""
    final = drawn(labels, random)
    before = random.choice(SCALES).format(a=labels[0], b=labels[1])
    return before + random.choice(["\n", "\n\n", " "]) + wrapped(as_json(final, random), random), None


def with_a_field(labels: list[str], random: Random) -> tuple[str, Scores | None]:
    """A field beside the scores that corrects or rescales them."""
    final = drawn(labels, random)
    entries = listed(final, lambda: "why")
    value: dict[str, object] = {"scores": random.choice([entries, final])}
    match random.randrange(3):
        case 0:
            value |= random.choice(FIELDS)
        case 1:
            new = other_than(final, random)
            value[random.choice(BESIDE)] = random.choice(
                [new, {"scores": listed(new, lambda: "why")}, {labels[0]: new[labels[0]]}]
            )
        case _:
            entries[random.randrange(len(entries))] |= random.choice(ENTRY_FIELDS)
            value = {"scores": entries}
    if random.random() < 0.5:
        value = dict(reversed(value.items()))
    return wrapped(json.dumps(value, ensure_ascii=False), random), None


KINDS = (in_thoughts, taken_back, on_another_scale, with_a_field)


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
