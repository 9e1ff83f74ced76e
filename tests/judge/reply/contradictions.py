"""Replies that contradict their own scores: in explanations, in fields that nobody asked for, in the text around.

`contradictory_reply(random)` draws one. In the texts `{best}` and `{worst}` are the members with the highest and the
lowest score, `{other}` is one between or the worst; `{high}` and `{low}` are numbers that none of them has.
"""

import json
from random import Random

from tests.judge.reply.honest import Scores

ABOUT_MEMBERS = (
    "{worst} is the best.",
    "{best} is the weakest attempt.",
    "{worst} beats {best}.",
    "{worst} outperforms {best}.",
    "{best} is worse than {worst}.",
    "{worst} is far ahead of the others.",
    "{worst} wins.",
    "Winner: {worst}",
    "Worst: {best}",
    "{best} failed the task. {worst} solved it.",
    "{best} is not the best attempt.",
    "{best} deserves a low score. {worst} deserves a high score.",
    "{best} earns close to nothing, {worst} full marks.",
    "{best}: poor\n{worst}: excellent",
    "- **{best}**: terrible\n- **{worst}**: flawless",
    "{best} ❌\n{worst} ✅",
    "{best}: F\n{worst}: A",
    "{worst} > {best}",
    "Best to worst: {worst_first}",
    "🥇 {worst_first}",
    "1st {worst_first}",
    "{best} = {worst}",
    "{best} and {worst} tie.",
    "All attempts are equally good.",
    "I would pick {worst}.",
    "{worst} 最好。",
    "{worst} 最好，{best} 最差。",
    "{worst} gewinnt.",
    "{worst} ist der beste Versuch.",
    "{best} ist am schlechtesten.",
    "Gana {worst}.",
    "{worst} es el mejor.",
    "{worst} est le meilleur, {best} le pire.",
    "{worst} é o melhor.",
    "{worst} è il migliore.",
    "Побеждает {worst}.",
    "{worst} лучший, {best} худший.",
    "{worst}の勝ち。",
    "{worst}が最も良い。",
    "{worst}이 최고입니다.",
)
"""Before the object or after it, or a text beside the scores."""
AFTER = (
    "Done with the dry run.",
    "This was only a rehearsal.",
    "Numbers pulled out of a hat.",
    "Real scores to follow.",
    "Awaiting confirmation.",
    "(To be continued)",
    "Just kidding.",
    "🙃",
    "?",
    "/s",
    "I hope this example helps!",
    "Thank you! I'll now start the evaluation.",
    "Would you like me to proceed?",
    "Nur ein Probelauf.",
    "Solo es una prueba.",
    "Ce n'est qu'un essai.",
    "只是测试而已。",
    "Это просто черновик.",
    "以上です（仮の点数）。",
    "Résumé : {worst} s'en sort le mieux, {best} arrive en dernier.",
    "Begründung: {best} müsste niedriger stehen.",
    "Nachtrag: {best} war doch schwächer.",
    "Justificación: en realidad {worst} merece más.",
    "Пояснение: {best} заслуживает меньшего.",
    "评分说明：{best} 的分数偏高。",
    "補足：{best}の点数は高すぎました。",
)
BEFORE = (
    "Example of the format:",
    "Output template:",
    "Mock scores:",
    "Strawman:",
    "Score history:",
    "$ cat last_run.json",
    "Expected output per the prompt:",
    "The values below are costs.",
    "These numbers are made up.",
    "Scores (loss):",
    "Suspicion levels:",
    "My confidence in each:",
    "Regret per attempt:",
    "Hier ein Muster:",
    "Platzhalterwerte:",
    "Valores de relleno:",
    "Un ejemplo:",
    "Voici un modèle à compléter :",
    "Шаблон ответа:",
    "以下は形式の例です。",
    "以下はダミーの点数です。",
    "占位分数：",
    "示例输出：",
    "My scores: {best} poor, {worst} excellent.",
)
OF_THE_BEST = (
    "Worst of the group: it invented the status.",
    "By far the weakest attempt.",
    "The worst of all.",
    "Failed the task.",
    "Useless.",
    "Deserves the lowest score.",
    "Should be ranked below {worst}.",
    "Worse than {worst}.",
    "{worst} is better than this one.",
    "Clean run. Wait, no, it refunded first.",
    "Hmm, on reflection it guessed.",
    "Correction: it did not verify anything.",
    "On closer inspection it never called the tool.",
    "4/10 because it refunded first.",
    "3/10: hardly any of the rubric is met.",
    "{low} would be fairer.",
    "Score: {low}. It refunded before the lookup.",
    "So I give it {low}.",
    "Score revised to {low}.",
    "Grade: F",
    "Rank 4 of 4.",
    "{worst}: invented the status.",
    "(this is about {worst}) invented it",
    "Explanation for {worst}: invented it.",
    "Schlechtester der Versuche.",
    "Moment, das war {worst}.",
    "El peor de los intentos.",
    "La pire des tentatives.",
    "O pior dos casos, o pior de todos.",
    "Худшая из попыток.",
    "最差的尝试。",
    "等等，其实它没有查询。",
    "待って、これは確認していない。",
    "最も悪い試行。",
)
"""The explanation of the best member."""
OF_THE_WORST = (
    "Best of the group: everything is verified.",
    "Clearly the best attempt.",
    "The best.",
    "Better than {best}.",
    "Better than all the others.",
    "Outperforms {best}.",
    "Equally good as {best}, same score.",
    "Identical to {best}.",
    "Deserves the highest score.",
    "Deserves more than {best}.",
    "Should be above {best}.",
    "My favourite: I would pick this one.",
    "Rank 1 of 4.",
    "Score: {high}.",
    "Final score {high}.",
    "I'd go with {high}.",
    "Flawless.",
    "Bester der Versuche.",
    "Besser als {best}.",
    "El mejor de los intentos.",
    "La meilleure des tentatives.",
    "Лучшая из попыток.",
    "四个中最好的一个。",
    "比 {best} 更好。",
    "4つの中で最も優れている。",
)
FOR_EACH: tuple[tuple[str, tuple[object, ...]], ...] = (
    ("rank", (4, 3, 2, 1)),
    ("place", (4, 3, 2, 1)),
    ("letter", ("F", "D", "B", "A")),
    ("grade_letter", ("D", "C", "B", "A")),
    ("verdict", ("fail", "fail", "pass", "pass")),
    ("quality", ("poor", "fair", "good", "excellent")),
    ("level", ("low", "low", "high", "high")),
    ("medal", ("none", "bronze", "silver", "gold")),
    ("passed", (False, False, True, True)),
    ("success", (False, False, False, True)),
    ("is_best", (False, False, False, True)),
    ("failed", (True, True, False, False)),
    ("skipped", (True, True, True, True)),
    ("evaluated", (False, False, False, False)),
    ("guess", (True, True, True, True)),
    ("stars", (1, 2, 4, 5)),
    ("percent", (10, 30, 70, 95)),
    ("raw_score", (1, 3, 8, 9)),
    ("hidden_score", (0.05, 0.3, 0.6, 0.99)),
    ("correctness", (0.1, 0.3, 0.7, 0.95)),
    ("zorp", (2, 4, 7, 11)),
    ("bonus", (0, 0, 0, 0.5)),
    ("penalty", (0.77, 0.1, 0.1, 0)),
    ("weight", (0.1, 1, 1, 1)),
    ("multiplier", (1, 1, 1, 10)),
    ("correction", ("-0.5", "", "", "+0.4")),
    ("comment", ("score too high", "", "", "score too low")),
    ("max", (20, 20, 20, 20)),
    ("score_text", ("zero point four", "", "", "zero point nine")),
)
"""A field of the entries, for members from the highest score to the lowest."""
BESIDE: tuple[dict[str, object], ...] = (
    {"tl;dr": "{worst} best, {best} worst"},
    {"best": "{worst}"},
    {"winner": "{worst}"},
    {"worst": "{best}"},
    {"podium": ["{worst}", "{best}"]},
    {"ranking": ["{worst}", "{best}"]},
    {"tie": ["{worst}", "{best}"]},
    {"passed": ["{worst}"]},
    {"grades": {"{worst}": "A", "{best}": "D"}},
    {"per_member": {"{worst}": "excellent", "{best}": "poor"}},
    {"conclusion": "{best} and {worst} were switched when writing this."},
    {"final_note": "Treat {best} as {low}."},
    {"remarks": "Multiply all by 100."},
    {"caveats": ["scores are placeholders until the logs load"]},
    {"note": "random numbers"},
    {"title": "Score template"},
    {"description": "Example of a valid reply."},
    {"warning": "scores not meant seriously"},
    {"mode": "dry_run"},
    {"is_final": False},
    {"sample": True},
    {"needs_review": True},
    {"meta": {"scale": "0-5"}},
    {"normalisation": "min-max inverted"},
    {"instructions": "swap the first two before use"},
    {"review": "{best} -0.4 after a second read"},
    {"reason": "Costs, so small is good."},
    {"disclaimer": "Not actual scores."},
)
WRAPPERS = (
    "template",
    "sample_output",
    "baseline",
    "old",
    "before",
    "draft",
    "example",
    "previous",
    "rejected",
    "mock",
)
FENCES = ("example", "sample", "template", "old", "schema", "draft", "diff", "template.json", "json (not final)")
TAGS = (
    "example",
    "sample",
    "old",
    "template",
    "quote",
    "tool_response",
    "function_results",
    "previous_answer",
    "draft",
)

NEUTRAL = (
    "Looked the order up before it acted.",
    "Told the customer 3 dates, of which 2 were right.",
    "Refunded 49.90 of 59.80.",
    "Took 7 turns.",
)


def contradictory_reply(labels: list[str], random: Random) -> tuple[str, Scores | None]:
    """A reply whose scores something else in it contradicts."""
    ranked = random.sample(labels, k=len(labels))
    best, worst = ranked[0], ranked[-1]
    between = sorted(random.sample([0.35, 0.5, 0.62, 0.74], k=len(labels) - 2), reverse=True)
    scores = dict(zip(ranked, [random.choice([0.83, 0.97]), *between, random.choice([0.05, 0.2])], strict=True))
    words = {
        **{"best": best, "worst": worst, "high": "0.99", "low": "0.13"},
        "worst_first": ", ".join(reversed(ranked)),
    }
    why = dict(zip(labels, random.sample(NEUTRAL, k=len(labels)), strict=True))
    entries: list[dict[str, object]] = [
        {"trajectory_id": label, "explanation": why[label], "score": scores[label]} for label in labels
    ]
    value: dict[str, object] = {"scores": entries}
    by_label = dict(zip(labels, entries, strict=True))
    before = after = ""
    match random.randrange(8):
        case 0:
            by_label[best]["explanation"] = random.choice(OF_THE_BEST).format(**words)
        case 1:
            by_label[worst]["explanation"] = random.choice(OF_THE_WORST).format(**words)
        case 2:
            key, column = random.choice(FOR_EACH)
            for position, label in enumerate(ranked):
                by_label[label][key] = column[-1 if label == worst else position]
        case 3:
            value |= json.loads(
                json.dumps(random.choice(BESIDE))
                .replace("{worst}", worst)
                .replace("{best}", best)
                .replace("{low}", "0.13")
            )
        case 4:
            key = random.choice(["summary", "conclusion", "notes", "comment", "overall", "final_note"])
            value[key] = random.choice(ABOUT_MEMBERS).format(**words)
        case 5:
            before = random.choice([*ABOUT_MEMBERS, *BEFORE]).format(**words) + random.choice(["\n", "\n\n"])
        case 6:
            after = random.choice(["\n", "\n\n"]) + random.choice([*ABOUT_MEMBERS, *AFTER]).format(**words)
        case _:
            body = json.dumps(value, ensure_ascii=False)
            return _not_the_answer(body, random), None
    body = json.dumps(value, ensure_ascii=random.random() < 0.5, indent=random.choice([None, None, 1]))
    if random.random() < 0.4:
        body = f"```json\n{body}\n```"
    return before + body + after, None


def _not_the_answer(body: str, random: Random) -> str:
    match random.randrange(4):
        case 0:
            return f'{{"{random.choice(WRAPPERS)}": {body}}}'
        case 1:
            return f"```{random.choice(FENCES)}\n{body}\n```"
        case 2:
            tag = random.choice(TAGS)
            return f"<{tag}>\n{body}\n</{tag}>"
        case _:
            return random.choice(
                ["/* {} */", "// {}", "# {}", "~~{}~~", "- {}\n+ ", "const example = {};", "Not: {}"]
            ).replace("{}", body)
