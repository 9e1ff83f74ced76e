import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import gavel
from gavel.judge.drafts import CRITERIA, DraftError, draft_rubric, read_draft
from gavel.judge.rubric import Criterion, Rubric
from gavel.llm.client import Client
from tests.endpoint import says
from tests.judge.groups import saying

TEXT = "- Reads the order first.\n- Tells the customer what was done: name: the amount."
TWO = [{"name": "looks", "text": "Reads the order.", "weight": 2}, {"name": "tells", "text": "Says so.", "weight": 1}]


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
    assert rubric.criteria == (Criterion("looks", "Reads the order.", 2), Criterion("tells", "Says so.", 1))
    first, second = endpoint.requests
    assert first["response_format"]["json_schema"]["schema"]["properties"] == {"criteria": CRITERIA}
    assert "The returns desk." in first["messages"][0]["content"]
    assert second["messages"][1] == {"role": "assistant", "content": json.dumps({"criteria": TWO[:1]})}
    assert second["messages"][2]["content"].startswith("That reply cannot be used: it has 1 criteria, not 2 to 10.\n")


async def test_a_model_that_drafts_no_rubric_in_time_is_an_error(endpoint):
    endpoint.script = [lambda _: says("I cannot.")]
    with pytest.raises(DraftError, match="openai/judge"):
        await draft_rubric(Client("openai/judge", endpoint.params), "The returns desk.")
    assert len(endpoint.requests) == 3


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
