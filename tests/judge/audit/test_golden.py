import json
from random import Random
from statistics import fmean

import pytest

from gavel.base.errors import GavelError
from gavel.judge.audit.agreement import pair_accuracy
from gavel.judge.audit.golden import GoldenResult, check_golden, golden_scores, jury_weights, learnt_prior, with_weights
from gavel.judge.audit.human_labels import GoldenGroup, load_golden
from gavel.judge.judge import Judge
from gavel.judge.prompt.fenced_transcript import read_transcripts

ASKED = "What is 2 + 2?"
ASK = {"role": "user", "content": ASKED}


def golden(name: str = "sum", **members: str) -> GoldenGroup:
    """A group of which each member says one thing; the first is the best, and so on."""
    said = {member: [{"role": "assistant", "content": text}] for member, text in members.items()}
    return GoldenGroup(name=name, opening=[ASK], members=said, order=[[member] for member in members])


def knows(groups: list[GoldenGroup], sign: int = 1):
    """A judge that has read the right order of these groups."""
    place = {
        str(member): len(group.order) - tier
        for group in groups
        for tier, names in enumerate(group.order)
        for name, member in zip(group.members, map(_ending, group.members.values()), strict=True)
        if name in names
    }

    async def judge(messages, schema):
        shown = read_transcripts(messages[1]["content"])
        quality = {label: place[str(_shown(attempt))] for label, attempt in shown.items()}
        return json.dumps({label: 0.5 + sign * value / 20 for label, value in quality.items()})

    return judge


def _ending(messages) -> list[str]:
    calls = [call["function"]["name"] for message in messages for call in message.get("tool_calls") or ()]
    return [*calls, messages[-1]["content"]]


def _shown(attempt) -> list[str]:
    (conversation,) = attempt
    calls = [event.name for event in conversation.events if hasattr(event, "name")]
    return [*calls, conversation.events[-1].text]


async def test_a_judge_that_knows_the_order_is_right_throughout_and_its_opposite_nowhere():
    groups = load_golden()
    for sign, share in ((1, 1.0), (-1, 0.0), (0, 0.0)):
        results = await check_golden(Judge(knows(groups, sign)), groups)
        assert [each.reason for each in results] == [""] * len(groups)
        assert [each.right for each in results] == [share * len(group.pairs) for group in groups]


async def test_a_group_that_was_not_judged_in_full_has_no_verdicts():
    asked = 0

    async def fails_once(messages, schema):
        nonlocal asked
        asked += 1
        if asked == 1:
            raise ValueError("no idea")
        labels = read_transcripts(messages[1]["content"])
        return json.dumps(dict.fromkeys(labels, 0.5))

    (one,) = await check_golden(Judge(fails_once, orders=2), [golden(good="4", bad="5")])
    assert (one.scores, one.right, one.violated) == ({}, 0, [])
    assert "no idea" in one.reason


GOOD = golden(a="4", b="5").model_dump()


ORDERS = ({"order": [["a"]]}, {"order": [["a", "b"]]}, {"ordre": []})


@pytest.mark.parametrize("groups", ["[", [], [GOOD, GOOD], *([GOOD | order] for order in ORDERS), None])
def test_a_file_that_is_no_golden_set_is_named(tmp_path, groups):
    path = tmp_path / "mine.json"
    if groups is not None:
        path.write_text(groups if isinstance(groups, str) else json.dumps(groups))
    with pytest.raises(GavelError, match=r"mine\.json"):
        load_golden(path)


async def test_a_golden_set_tells_the_juror_that_knows_from_the_one_that_errs():
    groups: list[GoldenGroup] = [golden(f"g{n}", good=f"right {n}", fair=f"near {n}", bad=f"far {n}") for n in range(5)]
    wise, wrong = knows(groups), knows(groups, -1)
    wise.__qualname__, wrong.__qualname__ = "wise", "wrong"
    results = await check_golden(Judge([wise, wrong], orders=2), groups)
    weights = jury_weights(golden_scores(results))
    assert weights == {"wise": 2.0, "wrong": 0.0}
    alone = await check_golden(Judge(wise, orders=2), groups)
    weighted = with_weights(results, weights)
    assert [each.scores for each in weighted] == [each.scores for each in alone]
    assert [{vote.model for member in each.judged for vote in member.judgement.votes} for each in weighted] == [
        {"wise"}
    ] * len(groups)
    gap = 0.05  # which both together, of equal weight, never see
    assert learnt_prior(results).skill is None
    assert learnt_prior(weighted).p_better(gap) == pytest.approx(learnt_prior(alone).p_better(gap))


def chats(**labels):
    rows = [dict(zip(labels, values, strict=True)) for values in zip(*labels.values(), strict=True)]
    return [
        {"messages": [ASK, {"role": "assistant", "content": said}], **row} for said, row in zip("45", rows, strict=True)
    ]


def pair(one: str, other: str, **labels):
    return {"prompt": ASKED, "response_a": one, "response_b": other, **labels}


RANKS = [{"answer": "It is 5 or 6", "rank": 2}, {"answer": "4", "rank": 1}]
RIGHT, WRONG = {"said": "4", "right": True}, {"said": "5", "right": False}
FORMS = {
    "ranked objects": [{"prompt": f"{ASKED} {n}", "answers": RANKS, "turns": 1} for n in (1, 2)],
    "undecided pairs": [
        pair(*said, prompt=f"{ASKED} {winner}", winner=winner)
        for said, winner in (("45", "a"), ("45", None), ("45", ""), ("54", "B"))
    ],
    "a winner from 1": [
        {"id": 7, "instruction": ASKED, "outputs": ["4", "5"], "label": 1},
        {"id": 8, "instruction": ASKED, "outputs": ["5", "4"], "label": 2},
    ],
    "the majority of three, one of them undecided": [
        {"instruction": ASKED, "input": "", "response1": "4", "response2": "5", "a1": 1, "a2": 0, "a3": 1},
        {"instruction": ASKED, "input": "", "response1": "5", "response2": "4", "a1": 2, "a2": 2, "a3": 1},
        {"instruction": ASKED, "input": "", "response1": "4", "response2": "four", "a1": 2, "a2": 0, "a3": 1},
    ],
    "a winner by name": [
        pair("4", "5", winner="model_a"),
        pair("5", "4", winner="model_b"),
        pair("4", "4.0", winner="tie (both good)"),
    ],
    "rankings": [{"prompt": ASKED, "answers": ["5", "4", "6"], "ranking": [2, 1, 3]}],
    "ratings beside the answers": [{"prompt": ASKED, "text1": "5", "text2": "4", "rating1": 1.5, "rating2": 4}],
    "answers with their labels": [{"question": ASKED, "truth": "It is 4.", "small": WRONG, "large": RIGHT}],
    "one answer a row": [
        {"source": ASKED, "n": 1, "reply": "4", "scores": {"clear": 0.1, "overall": 4.5}},
        {"source": ASKED, "n": 2, "reply": "5", "scores": {"clear": 0.9, "overall": 1.0}},
    ],
    "attempts with a reward": chats(reward=(1.0, 0.0)),
    "conversations, and a field for each winner": [
        {
            "model_a": "a-model-with-a-long-name" * 3,
            "model_b": "small",
            **{f"conversation_{side}": [ASK, {"role": "assistant", "content": text}] for side, text in sides.items()},
            **{f"winner_model_{side}": int(text == "4") for side, text in sides.items()},
            "winner_tie": 0,
        }
        for sides in ({"a": "5", "b": "4"}, {"a": "4", "b": "5"}, {"a": "5", "b": "4"})
    ],
    "a label whose name ends in a letter of a side, beside identifiers": [
        {"id": 1, "annotator_id": 2} | pair("4", "5", preference=1),
        {"id": 2, "annotator_id": 1} | pair("5", "4", preference=2),
    ],
    "what was chosen": [{"prompt": ASKED, "chosen": "4", "rejected": "5"}],
}


@pytest.mark.parametrize("form", FORMS)
def test_labelled_attempts_are_read_by_their_structure(tmp_path, form):
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, FORMS[form])))
    for group in load_golden(path):
        best = [group.members[name][-1]["content"] for name in group.order[0]]
        assert best == ["4"]
        shown = json.dumps(group.group().trajectories[0].messages())
        assert ASKED in shown
        assert "It is 4" not in shown


@pytest.mark.parametrize(
    ("rows", "remedy"),
    [
        ([{"prompt": ASKED, "outputs": ["4", "5"], "clear": [1, 2], "kind": [2, 1]}], "clear, kind"),
        ([{"prompt": ASKED, "outputs": ["4", "5"], "id": "x"}], "one value that names an answer"),
        ([{"prompt": ASKED, "outputs": ["4", "5"], "score": [1, 1]}], "--label"),
        ([{"prompt": ASKED, "outputs": ["4", "5"], "post_id_1": 7, "post_id_2": 8}], "one value that names an answer"),
    ],
)
def test_a_label_is_not_guessed(tmp_path, rows, remedy):
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(GavelError) as refused:
        load_golden(path)
    assert remedy in (refused.value.remedy or "")


def test_a_label_may_be_a_text_of_a_number_or_a_rank_but_no_word(tmp_path):
    table, rows = tmp_path / "labels.csv", tmp_path / "rows.jsonl"
    table.write_text(f"prompt,response,human score\n{ASKED},It is 5.,2\n{ASKED},4,10\n")
    assert [group.order for group in load_golden(table)] == [[["2"], ["1"]]]
    rows.write_text("\n".join(map(json.dumps, chats(rank=(1, 2), passed=("yes", "no")))))
    assert [group.order for group in load_golden(rows, "rank")] == [[["1"], ["2"]]]
    with pytest.raises(GavelError, match="'no', 'yes'"):
        load_golden(rows, "passed")


def test_a_task_without_its_question_is_refused_until_that_is_named(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"question": {"full_text": ASKED}, "answer_0": "4", "answer_1": "5", "score": [1, 0]}))
    with pytest.raises(GavelError) as refused:
        load_golden(path)
    assert "question.full_text" in (refused.value.remedy or "")
    (group,) = load_golden(path, prompt="question.full_text")
    assert ASKED in json.dumps(group.opening)
    assert group.label == "score"


def known_share(right: int, wrong: int, tied: int = 0) -> list[GoldenResult]:
    """Pairs that a judge without visible noise decides, or ties."""
    group = golden(good="4", bad="5")
    judged = group.group()
    scores = [1.0] * right + [0.0] * wrong + [0.5] * tied
    return [GoldenResult(group, judged, {"good": good, "bad": 1 - good}) for good in scores]


@pytest.mark.parametrize(("right", "wrong", "tied"), [(43, 7, 0), (28, 4, 18), (14, 0, 86), (15, 35, 0), (25, 25, 0)])
def test_the_learnt_probability_of_being_right_is_the_share_of_the_decided_that_are(right, wrong, tied):
    prior = learnt_prior(known_share(right, wrong, tied))
    assert prior is not None
    assert prior.p_better(1.0) == pytest.approx(right / (right + wrong), abs=0.05)
    assert prior.p_better(0.0) == 0.5
    assert prior.p_better(-1.0) == pytest.approx(1 - prior.p_better(1.0))


def test_a_judge_of_few_decided_pairs_is_taken_for_a_usual_one():
    few, more = learnt_prior(known_share(1, 1, 31)), learnt_prior(known_share(25, 25))
    assert few
    assert more
    assert few.p_better(1.0) > 0.6 > more.p_better(1.0)


def binary_jury(accuracy: dict[str, tuple[float, float]], count: int, seed: int):
    """Pairs on which each judge ties or decides, rightly or wrongly: by judge the share decided, and right of these."""
    random = Random(seed)

    def judged(decides: float, right: float) -> list[tuple[float, float]]:
        verdict = 0.5 if random.random() > decides else float(random.random() < right)
        return [(verdict, 1.0), (1 - verdict, 0.0)]

    return [{judge: judged(*shares) for judge, shares in accuracy.items()} for _ in range(count)]


def test_a_jury_with_learnt_weights_is_no_worse_than_its_best_member():
    strong = {"strong": (0.85, 0.9), "weak": (0.9, 0.45), "poor": (0.95, 0.3), "fair": (0.6, 0.8)}
    jury, best, equal = [], [], []
    for seed in range(40):
        pairs = binary_jury(strong, 400, seed)
        weights = jury_weights(pairs[:50])
        assert weights["poor"] == 0
        for group in pairs[50:]:
            scores = [sum(weights[judge] * group[judge][side][0] for judge in weights) for side in (0, 1)]
            jury.append(pair_accuracy([(round(scores[0], 9), 1.0), (round(scores[1], 9), 0.0)]))
            best.append(pair_accuracy(group["strong"]))
            means = [sum(group[judge][side][0] for judge in weights) for side in (0, 1)]
            equal.append(pair_accuracy([(means[0], 1.0), (means[1], 0.0)]))
    assert fmean(jury) > fmean(best) - 0.01
    assert fmean(jury) > fmean(equal) + 0.1
