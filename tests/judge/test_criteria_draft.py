import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import gavel
from gavel.judge.criteria_draft import ScoredCriterion, merge_near_duplicates
from gavel.judge.errors import JudgeError
from gavel.judge.panel.juror import Juror
from gavel.judge.rubric import Criterion, Rubric
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.task import Task
from tests.endpoint import Answer, Endpoint, Request, says
from tests.judge.groups import saying

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


async def test_without_a_telling_criterion_none_is_kept():
    model = Model({"criteria": [DRAFT[2], DRAFT[2] | {"name": "kind"}]})
    MEANT["kind"] = MEANT["polite"]
    assert await gavel.draft_criteria("Who?", saying("Austen", "Shelley"), model) == []


async def test_a_judge_that_scores_nobody_keeps_no_criteria():
    model = Model()

    async def drafts_only(messages: list[dict[str, Any]], schema: dict[str, Any]) -> str:
        if "criteria" in schema["properties"]:
            return await model(messages, schema)
        return "I cannot say."

    with pytest.raises(JudgeError, match="scored too few attempts"):
        await gavel.draft_criteria(
            "Who?", saying("Austen", "Shelley"), drafts_only, config=gavel.JudgeConfig(content_retries=0)
        )
    with pytest.raises(JudgeError, match="goes by rules"):
        await gavel.draft_criteria("Who?", saying("Austen", "Shelley"), "stand-in")


async def test_over_http_the_draft_and_the_scores_are_asked_of_one_model(endpoint: Endpoint, tmp_path):
    def step(request: Request) -> Answer:
        schema = request["response_format"]["json_schema"]["schema"]
        if "criteria" in schema["properties"]:
            return says(json.dumps({"criteria": DRAFT}))
        return says(verdict(request["messages"], schema))

    endpoint.script = [step]
    juror = Juror("openai/judge", params=endpoint.params)
    for _ in range(2):
        criteria = await gavel.draft_criteria(
            "Who wrote Emma?", saying("Austen", "Shelley", "Brontë"), [juror], cassette=tmp_path / "tape.sqlite"
        )
        assert "brief" in [c.name for c in criteria]
    assert len(endpoint.requests) == 3


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
