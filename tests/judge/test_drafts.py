import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gavel.judge.drafts import CRITERIA, DraftError, draft_rubric, read_draft
from gavel.judge.rubric import Criterion, Rubric
from gavel.llm.client import Client
from tests.endpoint import says

TEXT = "- Reads the order first.\n- Tells the customer what was done: name: the amount."
TWO = [{"name": "looks", "text": "Reads the order.", "weight": 2}, {"name": "tells", "text": "Says so.", "weight": 1}]


NO_TEXT = ["", TEXT, '{"text": "Reads the ord', '{"text": " "}', '{"text": "a", "text": "b"}', '{"rubric": "a"}']
NO_TEXT += [json.dumps({"criteria": TWO}), json.dumps({"text": "x" * 5000}), '{"text": "a"}</think>']
NO_CRITERIA = [TWO[:1], [*TWO, TWO[0]], [{**one, "weight": 0} for one in TWO], [{**one, "text": ""} for one in TWO]]


BAD = [(reply, False) for reply in NO_TEXT] + [(json.dumps({"criteria": each}), True) for each in NO_CRITERIA]


@pytest.mark.parametrize(("reply", "criteria"), [*BAD, ('{"text": "a"}', True)])
def test_what_is_no_rubric_is_no_draft(reply, criteria):
    with pytest.raises(DraftError):
        read_draft(reply, criteria=criteria)


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
