"""Replies that are meant as they stand: scores by label, with what judges write around them. All are to be read.

`honest_reply(random)` draws one from varied pieces: prose before and after, markdown, closed thoughts with drafts in
them, explanations full of numbers, the same scores once more in a table or a list.
"""

import json
from collections.abc import Callable, Iterator
from random import Random

LABELS = ("K7QX", "W3RT", "M4TD", "ZBH9")
Scores = dict[str, float]

EXPLANATIONS = (
    "Looked the order up first, then refunded it within policy.",
    "Made 3 calls where 1 would do, and told the customer a wrong date (2024-05-12).",
    "7/10 for tone, 9/10 for accuracy; the final answer is right.",
    "On a scale of 1 to 5 the customer would give it a 2.",
    "{compared}",
    'It said "wait, I mixed up the orders" and corrected itself at step 4.',
    "Score: partial. 50% of the items were refunded.",
    'No answer; it wrote {"score": 1} to sway the judge.',
    "Lower latency (0.8 s), yet the refund of $30.50 was wrong.",
    "正确地查询了订单,然后退款。",
    "Überprüft die Bestellung 4512 nicht, bevor sie storniert wird.",
    "Verificó la política [sección 3.2] antes de actuar: 10 de 10 pasos.",
    "Actually calls get_policy() before refund(); should be the reference.",
    "It thinks in <think> tags </think> and then answers.",
    "",
)
INTROS = (
    "",
    "",
    "Here are the scores:",
    "Here are my scores for all {count} trajectories:",
    "Sure! Here is my evaluation:",
    "Sure, here's the JSON object you asked for:",
    "Here is the JSON in the requested format:",
    "I compared the attempts carefully.",
    "I have reviewed all {count} trajectories against the rubric.",
    "After comparing the trajectories, I scored each from 0 (worst) to 1 (best).",
    "Scores range from 0 to 1, where 1 is best:",
    "Scores (0 = worst, 1 = best):",
    "Based on the rubric, these are the scores.",
    "My verdict:",
    "**Scores**",
    "## Scores",
    "### Evaluation",
    "**Final scores:**",
    "Final answer:",
    "JSON:",
    "```",
    "The main difference is whether the order was looked up before the refund.",
    "{a} made 3 calls and checked order 4512, while {b} made 12 calls and refunded $30 too much.",
    "{a} took 5 steps; {b} took 9. Both tell the customer what was done.\n\nScores:",
    "Trajectory {a} is the only one that verified the policy before it refunded the order.",
    "- {a}: looks up the order, keeps the policy\n- {b}: refunds without looking\n",
    "1. {a}: looks up the order, keeps the policy.\n2. {b}: refunds without looking.\n\nHere is the result:",
    "### Trajectory {a}\nIt looks up the order in step 2 and refunds 1 of 2.\n\n### Trajectory {b}\nIt guesses.\n",
    "**{a}**: correct and direct.\n**{b}**: did not check the policy (rule 4).\n\n**Scores**",
    "## Analysis\n{a} is direct; {b} needed 3 retries.\n\n## Scores",
    "**Reasoning:** {a} did what the user asked.\n\n**Final scores:**",
    "Let me compare the trajectories. {a} finished the job. {b} stopped after 2 of 5 steps.\n\nSo here are the scores:",
    "The user asked for a refund of order #4512 (2 items, $59.90). {a} refunds both items; {b} refunds 1 item.",
    "| Trajectory | Calls | Outcome |\n|---|---|---|\n| {a} | 3 | refunded |\n| {b} | 12 | denied |\n",
    "I judged correctness first, then efficiency.",
    "Okay, I have read everything. Scores below.",
    "Evaluation complete. The JSON follows:",
    "Evaluating the trajectories by the given rubric, I come to this result:",
    "{a} scores {sa} because it checked first. {b} scores {sb}.",
    "Summary of my judgement follows.",
)
OUTROS = (
    "",
    "",
    "",
    "I hope this helps!",
    "Let me know if you need anything else.",
    "Let me know if you would like a more detailed explanation of any score.",
    "Trajectory {first} is best.",
    "Done.",
    "These scores reflect how well each attempt followed the rubric.",
    "The scores are relative to the other attempts in this group.",
    "All {count} trajectories have been scored.",
    "All scores are from 0 to 1.",
    "{best} was the only attempt that looked up the order before it acted.",
    "{best} is the best.",
    "Overall, {best} is the strongest attempt.",
    "The main difference between the attempts was whether they checked the policy first.",
    "Thank you!",
    "Feel free to ask if you have questions.",
    "In short: checking before acting is what made the difference.",
    "That is all.",
    "[End of evaluation]",
    "<|im_end|>",
    "</s>",
    "---",
)
DRAFTS = (
    "Let me see. {a} maybe 0.3, {b} 0.7? Wait, I mixed them up.",
    'First guess: {{"scores": [{{"trajectory_id": "{a}", "score": 0.1}}, {{"trajectory_id": "{b}", "score": 0.3}}',
    'So {{"{a}": 0.1, "{b}": 0.9, "{c}": 0.5}} or so. Hmm, on a scale of 10 it is 7.',
    "The rubric says facts come first. {a} looked the order up. Final: {b} best. No, {a}.",
    "I should output JSON. Lower is better? No: 1 is best.",
)
CLOSED = (
    "<think>{draft}</think>",
    "<think>\n{draft}\n</think>\n\n",
    "<thinking>{draft}</thinking>\n",
    "<reasoning>{draft}</reasoning>",
    "<analysis>\n{draft}\n</analysis>\n",
    "[THINK]{draft}[/THINK]",
    "◁think▷{draft}◁/think▷",
    "<seed:think>{draft}</seed:think>",
    "<|START_THINKING|>{draft}<|END_THINKING|>",
    "<|channel|>analysis<|message|>{draft}<|end|><|start|>assistant<|channel|>final<|message|>",
    "<|begin_of_thought|>{draft}<|end_of_thought|>\n",
    "<scratchpad>{draft}</scratchpad>\n",
    "{draft}</think>\n\n",
    "<musing>\n{draft}\n</musing>\n",
)

PLACES = ("K7QX", "W3RT", "M4TD")
"""The best, the worst and the other, as the texts below speak of them."""
SAID_BEFORE = (
    "I'll evaluate each trajectory based on the rubric provided.",
    ("Looking at these trajectories, the key question is whether the agent refunds the right order."),
    (
        "Here's my analysis:\n\nK7QX correctly identifies the order and completes the refund. W3RT fails "
        "to verify identity. M4TD partially completes the task.\n"
    ),
    (
        "I need to evaluate these 3 trajectories.\n\nTrajectory K7QX: The agent calls get_order, "
        "get_policy, and then refund. It tells the customer about the 10-day window.\n\nTrajectory W3RT: "
        "The agent denies the request without looking anything up.\n\nTrajectory M4TD: The agent refunds, "
        "but does not check the policy.\n\nScores:"
    ),
    (
        "**Trajectory K7QX:** Excellent. Calls 4 tools in the right order.\n\n**Trajectory W3RT:** Poor. "
        "Hallucinates a 14-day policy.\n\n**Trajectory M4TD:** Mediocre.\n"
    ),
    (
        "Comparing the trajectories:\n1. K7QX - verified the order, followed the policy, informed the "
        "user.\n2. W3RT - no verification.\n3. M4TD - verified the order but gave a wrong date.\n"
    ),
    (
        "All three trajectories deal with the same refund request.\n\nK7QX and M4TD look up the order "
        "first; W3RT does not. K7QX also confirms the amount ($42.10)."
    ),
    "Assessment:",
    "Here you go:",
    "Below is the JSON.",
    "As requested:",
    "The following JSON contains my scores:",
    "Output:",
    "Response:",
    "Result",
    "Based on my analysis, here are the final scores:",
    "Considering correctness, safety and efficiency, my scores are as follows:",
    ("Based on the rubric's criteria (facts first, claims backed by tools, directness), I judge:"),
    "Thanks for the detailed transcripts. Here's the evaluation.",
    "The best attempt is K7QX, since it checked the policy before refunding.",
    (
        "## Comparison\n\n- **K7QX**: 3 tool calls, correct refund.\n- **W3RT**: 0 tool calls, invented "
        "policy.\n- **M4TD**: 5 tool calls, 2 of them redundant.\n\n## Scores\n"
    ),
    "### Summary\nK7QX did best. W3RT did worst.\n\n### JSON\n",
    "> Rubric: facts first.\n\nWith that in mind, here are my scores:",
    (
        "K7QX clearly comes out ahead. It looked up both the order and the policy before acting, in only 3 "
        "calls.\n\nM4TD refunded the right order but skipped the policy.\n\nW3RT never looked anything up "
        "and invented a 30-day return window."
    ),
    "Step 1: read the rubric. Step 2: compare. Step 3: score.\n",
    "Overall ranking: K7QX > M4TD > W3RT.\n",
    ("I consider K7QX the strongest (all 4 steps done), then M4TD (3 of 4 steps), then W3RT (1 of 4 steps).\n"),
    "The agent in W3RT claimed success although the tool returned an error 404.",
    "Note that W3RT's text addresses the judge; I disregard it and count it as a fault.",
    'W3RT tries to sway the judge with "give me a score of 1.0". I ignored that.',
    ("Since trajectories M4TD and K7QX are nearly identical up to step 6, the difference lies in the last message."),
    "Hier ist meine Bewertung:",
    "Aquí están las puntuaciones:",
    "以下是评分结果：",
    "Voici les notes :",
    "Вот мои оценки:",
    "K7QX对订单进行了核实，W3RT没有。\n",
    "Die Trajektorie K7QX prüft zuerst die Bestellung, W3RT nicht.\n",
    ("First, K7QX: it answers in 2 turns. Second, W3RT: it needs 6 turns. Third, M4TD: 4 turns."),
    "Scores on the 0-1 scale:",
    "Scoring (0.0-1.0):",
    "Scores between 0 and 1 for each trajectory:",
    "Each trajectory was scored from 0 to 1 by the rubric:",
    "Higher is better:",
    "(I weighed correctness most.)",
    "Final JSON:",
    "Here is the final JSON object with exactly 3 entries:",
    "Sure thing! 😊",
    "✅ Evaluation done.",
)
SAID_AFTER = (
    "Hope that helps!",
    "Explanation: K7QX checked the policy first, which is what the rubric asks for.",
    "K7QX wins because it verified the order.",
    "W3RT's main fault is that it invented a policy.",
    ("In summary, K7QX did everything that was asked, M4TD did most of it, and W3RT did little."),
    "Note: W3RT attempted to address the judge, which was counted against it.",
    "Note: the order in which they were shown had no influence.",
    "Please let me know if you have any questions.",
    "The scores differ as much as the quality does.",
    "K7QX and M4TD are close; W3RT is far behind.",
    "K7QX is clearly ahead of the others.",
    "Scores are based on the rubric above.",
    "I scored each trajectory relative to the others.",
    "The higher the score, the better the attempt.",
    "Higher is better.",
    "(0 = worst, 1 = best)",
    "Scale: 0 to 1.",
    "**Ranking:** K7QX > M4TD > W3RT",
    "Best: K7QX. Worst: W3RT.",
    "K7QX (0.9) > M4TD (0.5) > W3RT (0.2)",
    "Summary: K7QX 0.9, M4TD 0.5, W3RT 0.2",
    "END",
    "<end_of_turn>",
    "<|eot_id|>",
    "<|endoftext|>",
    "[/INST]",
    "Evaluation complete.",
    "This concludes the evaluation.",
    "Best regards",
    "*End of JSON*",
    "Trajectory 1 is the best because it looked first.",
    "The second trajectory did not check anything.",
    "Let me know if you'd like more detail on any trajectory!",
    "I'm happy to elaborate.",
    "My reasoning is in the explanations.",
    "The explanations give the reasons.",
    "No trajectory was perfect.",
    "W3RT did not verify the order before it refunded the money.",
    "Both K7QX and M4TD verified the order.",
    "Danke!",
    "希望对您有帮助。",
)


def listed(scores: Scores, explanation: Callable[[], str]) -> list[dict[str, object]]:
    return [{"trajectory_id": label, "explanation": explanation(), "score": score} for label, score in scores.items()]


def compared(label: str, scores: Scores) -> str:
    """An explanation that compares a member with others, as their scores do."""
    better = [other for other in scores if scores[other] > scores[label]]
    worse = [other for other in scores if scores[other] < scores[label]]
    parts = [f"better than {other}" for other in worse[:1]] + [f"worse than {other}" for other in better[:1]]
    text = ", ".join([*parts, "since it checked the policy."])
    return text[0].upper() + text[1:]


def forms(scores: Scores, random: Random) -> str:
    """The scores as JSON, in one of the shapes that models give them."""
    explanations = random.sample(EXPLANATIONS, k=len(scores))
    entries: list[dict[str, object]] = [
        {
            "trajectory_id": label,
            "explanation": why.replace("{compared}", compared(label, scores)),
            "score": scores[label],
        }
        for label, why in zip(scores, explanations, strict=True)
    ]
    plain = {"scores": entries}
    value = random.choice(
        [
            *[plain] * 12,
            entries,
            scores,
            {"result": plain},
            {"reasoning": "First 0.3 for W3RT, then more: on a scale of 10 a 7.", **plain},
            {**plain, "summary": "The first attempt looked the order up before it acted."},
            {**plain, "confidence": 0.8},
            {**plain, "scale": "0-1"},
            {"scores": [{**entry, "confidence": 0.7} for entry in entries]},
        ]
    )
    return json.dumps(value, ensure_ascii=random.random() < 0.5, indent=random.choice([None, None, 1, 2]))


def restated(scores: Scores, random: Random) -> str:
    """The same scores once more."""
    best_first = sorted(scores, key=lambda label: -scores[label])
    return random.choice(
        [
            "\n".join(f"- {label}: {score}" for label, score in scores.items()),
            "\n".join(f"- **{label}**: {score:.2f}" for label, score in scores.items()),
            "| Trajectory | Score |\n|---|---|\n"
            + "\n".join(f"| {label} | {score} |" for label, score in scores.items()),
            "Ranking: " + " > ".join(best_first),
            "Scores: " + ", ".join(f"{label} {score:g}" for label, score in scores.items()) + ".",
            "; ".join(f"{label} = {score}" for label, score in scores.items()),
            "So " + ", ".join(f"{label} gets {score}" for label, score in scores.items()) + ".",
        ]
    )


def honest_reply(random: Random) -> tuple[str, Scores]:
    labels = random.sample(LABELS, k=random.choice([2, 3, 4]))
    scores = {
        label: random.choice([0.0, 0.05, 0.1, 0.15, 0.25, 0.35, 0.5, 0.6, 0.72, 0.85, 0.9, 0.95, 1.0])
        for label in labels
    }
    best = max(scores, key=lambda label: scores[label])
    a, b, *_ = labels
    words = {"a": a, "b": b, "c": labels[-1], "count": len(labels), "best": best, "sa": scores[a], "sb": scores[b]}
    words["first"] = labels.index(best) + 1
    intro = random.choice(INTROS)
    body = forms(scores, random)
    if intro == "```":
        intro = ""
    if random.random() < 0.5:
        body = f"```{random.choice(['json', '', 'JSON'])}\n{body}\n```"
    outro = random.choice(OUTROS).format(**words)
    if random.random() < 0.15:
        outro = restated(scores, random)
    before = intro.format(**words)
    if random.random() < 0.1:
        before = restated(scores, random) + "\n"
    if before:
        before += random.choice(["\n", "\n\n"])
    if random.random() < 0.3:
        draft = random.choice(DRAFTS).format(**words)
        before = random.choice(CLOSED).format(draft=draft) + before
    return before + body + (random.choice(["\n", "\n\n"]) + outro if outro else ""), scores


def honest_replies() -> Iterator[tuple[str, Scores]]:
    """A reply for each of the longer texts around an object, before or after it."""
    scores = dict(zip(PLACES, (0.9, 0.2, 0.5), strict=True))
    body = json.dumps({"scores": listed(scores, lambda: "why")}, indent=1)
    for text in SAID_BEFORE:
        yield f"{text}\n\n{body}", scores
        yield f"{text}\n\n```json\n{body}\n```", scores
    for text in SAID_AFTER:
        yield f"{body}\n\n{text}", scores
        yield f"```json\n{body}\n```\n{text}", scores
