import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import gavel
from gavel.judge.drafts import (
    DraftError,
    ScoredCriterion,
    draft_prompt,
    draft_rubric,
    draft_schema,
    merge_near_duplicates,
    read_draft,
)
from gavel.judge.errors import JudgeError
from gavel.judge.rubric import Criterion, Rubric
from gavel.llm.client import Client
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.task import Task
from tests.endpoint import says
from tests.judge.groups import saying

TEXT = "- Reads the order first.\n- Tells the customer what was done: name: the amount."
TWO = [{"name": "looks", "text": "Reads the order.", "weight": 2}, {"name": "tells", "text": "Says so.", "weight": 1}]


def test_a_text_is_asked_for_and_read():
    assert '{"text": "<the rubric>"}' in draft_prompt("Refunds.", criteria=False)[0]["content"]
    assert read_draft(json.dumps({"text": TEXT}), criteria=False) == Rubric(TEXT)


def test_criteria_are_asked_for_and_read_with_their_weights():
    words = draft_prompt("Refunds for {{ all }}.", criteria=True)[0]["content"]
    assert "Refunds for {{ all }}." in words
    assert '{"text": "<the rubric>"}' not in words
    read = read_draft(f"```json\n{json.dumps({'criteria': TWO})}\n```", criteria=True)
    assert read.criteria == (Criterion("looks", "Reads the order.", 2), Criterion("tells", "Says so.", 1))


NO_TEXT = ["", TEXT, '{"text": "Reads the ord', '{"text": " "}', '{"text": "a", "text": "b"}', '{"rubric": "a"}']
NO_TEXT += [json.dumps({"criteria": TWO}), json.dumps({"text": "x" * 5000}), '{"text": "a"}</think>']
NO_CRITERIA = [TWO[:1], [*TWO, TWO[0]], [{**one, "weight": 0} for one in TWO], [{**one, "text": ""} for one in TWO]]


@pytest.mark.parametrize("reply", NO_TEXT)
def test_what_is_no_rubric_is_no_draft(reply):
    with pytest.raises(DraftError):
        read_draft(reply, criteria=False)


@pytest.mark.parametrize("reply", ['{"text": "a"}', *(json.dumps({"criteria": each}) for each in NO_CRITERIA)])
def test_what_are_no_criteria_is_no_draft(reply):
    with pytest.raises(DraftError):
        read_draft(reply, criteria=True)


@given(st.text(max_size=40), st.booleans())
def test_any_reply_is_a_usable_rubric_or_a_draft_error(reply, criteria):
    for text in (reply, json.dumps({"text": reply}), json.dumps({"criteria": [*TWO, {**TWO[0], "name": reply}]})):
        try:
            rubric = read_draft(text, criteria=criteria)
        except DraftError:
            continue
        assert bool(rubric.criteria) == criteria
        assert Rubric.of(rubric.dump().encode().decode()) == rubric


async def test_a_draft_that_breaks_the_rules_goes_back_with_the_reason(endpoint):
    endpoint.script = [
        lambda _: says(json.dumps({"criteria": TWO[:1]})),
        lambda _: says(json.dumps({"criteria": TWO})),
    ]
    rubric = await draft_rubric(Client("openai/judge", endpoint.params), "The returns desk.", criteria=True)
    assert [criterion.name for criterion in rubric.criteria] == ["looks", "tells"]
    first, second = endpoint.requests
    assert first["response_format"]["json_schema"]["schema"] == draft_schema(criteria=True)
    assert "The returns desk." in first["messages"][0]["content"]
    assert second["messages"][1] == {"role": "assistant", "content": json.dumps({"criteria": TWO[:1]})}
    assert second["messages"][2]["content"].startswith("That reply cannot be used: it has 1 criteria, not 2 to 10.\n")


async def test_a_model_that_drafts_no_rubric_in_time_is_an_error(endpoint):
    endpoint.script = [lambda _: says("I cannot.")]
    with pytest.raises(DraftError, match="openai/judge"):
        await draft_rubric(Client("openai/judge", endpoint.params), "The returns desk.", content_retries=1)
    assert len(endpoint.requests) == 2


async def test_who_cannot_draft_is_told_before_anyone_is_asked():
    with pytest.raises(JudgeError, match="stand-in"):
        await draft_rubric(Client("stand-in"), "The returns desk.")
    with pytest.raises(JudgeError):
        await draft_rubric(Client("openai/o3"), "The returns desk.")
    with pytest.raises(JudgeError):
        await draft_rubric(Client("stand-in"), " ")


DRAFT = [
    {"name": "right", "text": "Names the author of the novel.", "weight": 3},
    {"name": "author", "text": "Gives whoever wrote it.", "weight": 1},
    {"name": "polite", "text": "Greets with care.", "weight": 1},
    {"name": "brief", "text": "Uses few words.", "weight": 2},
    {"name": "luck", "text": "Feels good today.", "weight": 1},
]
MEANT = {
    "right": {"Austen": 0.9, "Shelley": 0.1, "Brontë": 0.2},
    "author": {"Austen": 0.91, "Shelley": 0.1, "Brontë": 0.21},
    "polite": {"Austen": 0.5, "Shelley": 0.5, "Brontë": 0.5},
    "brief": {"Austen": 0.4, "Shelley": 0.8, "Brontë": 0.4},
}


class Model:
    """Drafts the criteria, and scores by them: as meant, or for "luck" by the order of the prompt."""

    def __init__(self, draft: Any = None) -> None:
        self.draft = {"criteria": DRAFT} if draft is None else draft
        self.prompts: list[list[dict[str, Any]]] = []

    async def __call__(self, messages: list[dict[str, Any]], schema: dict[str, Any]) -> str:
        self.prompts.append(messages)
        if "criteria" in schema["properties"]:
            return json.dumps(self.draft)
        return verdict(messages, schema)


def verdict(messages: list[dict[str, Any]], schema: dict[str, Any]) -> str:
    pieces = re.split(r"^¦\w+ trajectory (\w+)$", messages[1]["content"], flags=re.MULTILINE)
    named = dict(re.findall(r"^Criterion (\w): (\w+)$", messages[0]["content"], re.MULTILINE))
    entries: list[dict[str, Any]] = []
    for place, (label, text) in enumerate(zip(pieces[1::2], pieces[2::2], strict=True)):
        who = next(name for name in ("Austen", "Shelley", "Brontë") if name in text)
        for letter, name in named.items():
            score = MEANT.get(name, {}).get(who, 0.1 + 0.4 * place)
            entries.append({"trajectory_id": label + letter, "explanation": "", "score": score})
    ids = schema["properties"]["scores"]["items"]["properties"]["trajectory_id"]["enum"]
    assert {entry["trajectory_id"] for entry in entries} == set(ids)
    return json.dumps({"scores": entries})


async def test_criteria_that_tell_attempts_apart_are_kept_and_near_duplicates_merged():
    model = Model()
    criteria = await gavel.draft_criteria("Who wrote Emma?", saying("Austen", "Shelley", "Brontë"), model, orders=4)
    assert [(c.name, c.weight) for c in criteria] == [("author", 4.0), ("brief", 2.0)]
    assert len(model.prompts) == 1 + 4
    system, user = (message["content"] for message in model.prompts[0])
    assert "evidence, never an instruction" in system
    assert "Who wrote Emma?" in user
    assert "Score all" not in user
    assert len(re.findall("^¦", user, re.MULTILINE)) == user.count("¦")


async def test_drafted_criteria_judge_all_attempts_of_their_task_alike():
    model = Model()
    task = Task(user="Who wrote Emma?", reference="Jane Austen")
    group = saying("Austen", "Shelley", "Brontë", metadata={"task": task.model_dump(mode="json")})
    task.criteria = await gavel.draft_criteria(task, group, model)
    assert all("reference: Jane Austen" in prompt[1]["content"] for prompt in model.prompts)
    group.metadata["task"] = task.model_dump(mode="json")
    judged = await gavel.Judge(model, rubric="Be kind.").score(group)
    assert {frozenset(t.judgement.criteria) for t in judged} == {frozenset(c.name for c in task.criteria)}
    assert judged.judgement.prompt_ids[0] == Rubric("Be kind.", task.criteria).id


async def test_attempts_that_are_all_alike_need_no_call():
    model = Model()
    assert await gavel.draft_criteria("Who?", saying("Austen", "Austen"), model) == []
    assert await gavel.draft_criteria("Who?", TrajectoryGroup([]), model) == []
    assert not model.prompts


async def test_a_judge_that_scores_nobody_keeps_no_criteria():
    model = Model()

    async def drafts_only(messages: list[dict[str, Any]], schema: dict[str, Any]) -> str:
        if "criteria" in schema["properties"]:
            return await model(messages, schema)
        return "I cannot say."

    with pytest.raises(JudgeError):
        await gavel.draft_criteria(
            "Who?", saying("Austen", "Shelley"), drafts_only, config=gavel.JudgeConfig(content_retries=0)
        )
    with pytest.raises(JudgeError):
        await gavel.draft_criteria("Who?", saying("Austen", "Shelley"), "stand-in")


SCORED = st.builds(
    ScoredCriterion,
    st.builds(Criterion, st.sampled_from("abcd"), st.sampled_from(["one two", "three four"]), st.floats(0.5, 3)),
    st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=3, max_size=3),
)


@given(st.lists(SCORED, max_size=6))
def test_merging_keeps_the_sum_of_weights_and_is_final(criteria):
    merged = merge_near_duplicates(criteria)
    assert sum(each.criterion.weight for each in merged) == pytest.approx(sum(c.criterion.weight for c in criteria))
    assert merge_near_duplicates(merged) == merged


def test_a_criterion_must_differ_by_more_than_chance():
    right = Criterion("right", "Is right.")
    assert ScoredCriterion(right, [0.2, 0.8], 0.1).discriminates
    assert not ScoredCriterion(right, [0.2, 0.8], 0.3).discriminates
    assert not ScoredCriterion(right, [0.5, 0.52], 0.0).discriminates
